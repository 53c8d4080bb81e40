"""Drives a storage daemon by its monitor: qemu.qmp's client, from the first command to the last.

Arguments: the monitor's socket, the disk's path, and a path for the export's socket.
"""

import asyncio
import socket
import sys

from qemu.qmp import ExecuteError, QMPClient


async def deleted(events, act):
    """Removes the export, and waits for the event, on whichever side of the answer it comes."""
    await act
    event = await asyncio.wait_for(events.get(), 60)
    assert event["event"] == "BLOCK_EXPORT_DELETED", event
    assert event["data"] == {"id": "x"}, event


async def main(monitor, disk, path):
    client = QMPClient("test")
    await client.connect(monitor)
    assert client.greeting is not None
    names = {command["name"] for command in await client.execute("query-commands")}
    assert {"quit", "blockdev-add", "block-export-add", "object-add", "qom-set"} <= names

    await client.execute("object-add", {"qom-type": "iothread", "id": "io0"})
    await client.execute("blockdev-add", {"driver": "file", "node-name": "disk", "filename": disk})
    export = {
        "type": "vhost-user-blk",
        "id": "x",
        "node-name": "disk",
        "addr": {"type": "unix", "path": path},
        "iothread": "io0",
    }
    await client.execute("block-export-add", export)
    exports = await client.execute("query-block-exports")
    assert "x" in [found["id"] for found in exports], exports
    nodes = await client.execute("query-named-block-nodes")
    assert nodes[0]["image"]["virtual-size"] == 1 << 20, nodes
    with socket.socket(socket.AF_UNIX) as front_end:
        front_end.connect(path)

    value = {"path": "/objects/io0", "property": "poll-max-ns"}
    await client.execute("qom-set", {**value, "value": 1234})
    assert await client.execute("qom-get", value) == 1234
    try:
        await client.execute("blockdev-del", {"node-name": "disk"})
    except ExecuteError as error:
        assert error.error_class == "GenericError", error
    else:
        raise AssertionError("a node in use was removed")

    with client.listener("BLOCK_EXPORT_DELETED") as events:
        removal = client.execute("block-export-del", {"id": "x", "mode": "hard"})
        await deleted(events, removal)
    await client.execute("blockdev-del", {"node-name": "disk"})
    await client.execute("object-del", {"id": "io0"})
    await client.execute("quit")
    try:
        await client.disconnect()
    except EOFError:
        # The daemon may have closed the connection before: that is no news after "quit".
        pass


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 120))
