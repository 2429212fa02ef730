"""A TCP proxy that delays the server's answers: delay.py FILE LISTEN TARGET.

LISTEN and TARGET are HOST:PORT. FILE has the delay in milliseconds; it is read for each answer.
"""

import asyncio
import pathlib
import sys


def _split(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


async def _forward(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def _delay(reader, writer, file):
    """Forwards bytes in order, each piece after a delay of its own; the delays overlap."""
    loop, last = asyncio.get_running_loop(), 0.0
    try:
        while data := await reader.read(1 << 16):
            last = max(last + 1e-6, loop.time() + float(file.read_text()) / 1e3)
            loop.call_at(last, writer.write, data)
    except OSError:
        pass
    loop.call_at(last + 1e-6, writer.close)


async def main():
    file, listen, target = pathlib.Path(sys.argv[1]), _split(sys.argv[2]), _split(sys.argv[3])

    async def connected(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, far_writer), _delay(far_reader, writer, file))

    server = await asyncio.start_server(connected, *listen)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
