"""Ranks for tests: gloo processes over a file, forked from a server that has imported everything once."""

import contextlib
import os
import pickle
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from forked import CONTEXT


class Group:
    """`count` processes of one group, which call work(rank, say, *arguments) each; `say` sends a value to the test."""

    def __init__(self, count, work, folder, *arguments):
        store = folder / f"store-{len(list(folder.glob('store-*')))}"
        store.touch()
        ends = [CONTEXT.Pipe(duplex=False) for _ in range(count)]
        self._receiving = [receiving for receiving, _ in ends]
        self.processes = [
            CONTEXT.Process(target=_live, args=(rank, count, str(store), ends[rank][1], work, arguments), daemon=True)
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()
        for _, sending in ends:
            sending.close()

    def hear(self, rank, patience=600):
        """The next that a rank says: ("said", value), ("ended", what it returned or raised), or ("died", None)."""
        if not self._receiving[rank].poll(patience):
            raise AssertionError(f"rank {rank} said nothing for {patience} seconds")
        try:
            kind, found = pickle.loads(self._receiving[rank].recv_bytes())
        except EOFError:
            return "died", None
        if kind == "broken":
            raise AssertionError(f"rank {rank}: {found}")
        return kind, found

    def hear_out(self, rank):
        """All that a rank says, and how it ends."""
        said = []
        while True:
            kind, found = self.hear(rank)
            if kind != "said":
                return said, found
            said.append(found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()


def run(count, work, folder, *arguments):
    """Have `count` processes of one group call work(rank, *arguments); what each returned, or the error it raised."""
    with Group(count, _Silent(work), folder, *arguments) as group:
        return [group.hear_out(rank)[1] for rank in range(count)]


class _Silent:
    def __init__(self, work):
        self.work = work

    def __call__(self, rank, say, *arguments):
        return self.work(rank, *arguments)


def _live(rank, count, store, sending, work, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=300), count, rank)

    def say(value, kind="said"):
        sending.send_bytes(pickle.dumps((kind, value)))

    try:
        say(work(rank, say, *arguments), "ended")
    except (RuntimeError, ValueError) as error:
        say(error, "ended")
    except BaseException:
        say(traceback.format_exc(), "broken")
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
