"""What every part of the admin is built from: endpoints, calls, input and output."""
