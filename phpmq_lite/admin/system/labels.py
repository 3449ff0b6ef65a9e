"""Labels of addresses and networks, which the pages show beside connections."""

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.input import Form
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.saved_items import store_item
from phpmq_lite.roles import Role
from phpmq_lite.server import processes
from phpmq_lite.storage.read.accounts import SavedItems

endpoints: Final = Endpoints()
LABEL: Final = "label"  # kind of the saved items that store labels
LABEL_MAX: Final = 60  # maximum number of characters in a label


async def read_labels(context: Context) -> dict[str, str]:
    """Return all labels, keyed by the address or network that each applies to."""
    rows = await SavedItems(context.readers).all(LABEL)
    return {row.name: row.content for row in rows if isinstance(row.content, str)}


def host_of(address: str) -> str:
    """Return an address without its port, or unchanged if it has no port."""
    place = processes.split_address(address)
    return address if place is None else str(place[0])


def label_of(address: str, labels: Mapping[str, str]) -> str:
    """Return an address's label, or that of the smallest labelled network containing it."""
    place = processes.split_address(address) if labels else None
    if (host := host_of(address)) in labels or place is None:
        return labels.get(host, "")
    best, width = "", -1
    for name, label in labels.items():
        try:
            network = ip_network(name, strict=False)
        except ValueError:
            continue
        if place[0] in network and network.prefixlen > width:
            best, width = label, network.prefixlen
    return best


def read_label_name(text: str) -> str | None:
    """Parse the address, network or ``unix`` that a label applies to, or return None if invalid."""
    text = text.strip()
    if text == "unix":
        return text
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    is_one = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if is_one else str(network)


@endpoints.action("/clients/label", "client-label", Role.OPERATOR, "client.label")
async def save_label(call: Call, form: Form) -> Done[None]:
    """Save a label for an address or network, or remove the label if the text is empty."""
    context, name = call.context, read_label_name(form.text("name", 64))
    if name is None:
        bound = "10.0.0.7, 10.0.0.0/24 or unix"
        raise Problem(422, "invalid", "Enter an address or network.", field="name", bound=bound)
    label = form.text("label", LABEL_MAX)
    call.audit(name)
    if label != (await read_labels(context)).get(name, "").strip():
        await store_item(call, LABEL, name, label or None)
    text = f"Labelled {name} as {label}." if label else f"Removed the label from {name}."
    return Done(None, text, call.back(call.url("clients")))
