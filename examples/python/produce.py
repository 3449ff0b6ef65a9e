"""Publish an order; print its id once the broker has stored it.

Usage: python produce.py ORDER_ID [TOTAL [HOST:PORT]]
"""

import sys

from phpmq_lite.envelopes.worker_app import connect


def main() -> None:
    """Publish one envelope."""
    order_id, total, address = (*sys.argv[1:], *("1", "9.9", "127.0.0.1:9100")[len(sys.argv) - 1 :])
    app = connect(f"phpmq://{address}", queue="orders")
    try:
        # Raises before anything is sent if JSON cannot represent the data (NaN, a datetime, …).
        print(
            app.publish(
                "urn:babel:orders:created",
                {"order_id": int(order_id), "total": float(total), "mail": "anna@example.org"},
            )
        )
    finally:
        app.close()


if __name__ == "__main__":
    main()
