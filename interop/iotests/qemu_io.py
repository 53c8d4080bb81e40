

# Appended to a copy of iotests.py: storage daemons have no `qemu-io` in a human monitor, so it writes to an NBD export of the
# node.
def _qemu_io_through_nbd(self, drive, cmd, use_log=False, qdev=False):
    path = os.path.join(sock_dir, f'qemu-io-{os.getpid()}')
    export = {'id': 'qemu-io', 'type': 'nbd', 'node-name': drive, 'name': 'x', 'writable': True}
    assert 'return' in self.qmp('nbd-server-start', addr={'type': 'unix', 'data': {'path': path}})
    assert 'return' in self.qmp('block-export-add', export)
    output = qemu_io('-f', 'raw', f'nbd+unix:///x?socket={path}', '-c', cmd, check=False).stdout
    assert 'wrote' in output or 'read' in output, output
    assert 'return' in self.qmp('nbd-server-stop')
    assert self.event_wait('BLOCK_EXPORT_DELETED')
    return {'return': ''}


VM.hmp_qemu_io = _qemu_io_through_nbd
