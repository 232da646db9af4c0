"""Flower in one process, with functions for nodes: a grid of our own, and a SuperLink for Flower's own grid."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

Node = Callable[[Message], Sequence[Any]]  # replies: messages, or exceptions that unpacking them raises


def over_the_wire(message: Message) -> Message:
    """The message as it arrives at the other end."""
    name = message.object_id
    contents = {key: found.deflate() for key, found in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(name, contents)
    arrived.metadata.__dict__["_message_id"] = name
    return arrived


class FakeGrid(Grid):
    """Nodes answer as soon as they are asked; `asked` is what they were sent, by node."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.asked: list[tuple[int, Message]] = []
        self.looks = 0
        self.dead = False
        self._replies: dict[str, list[Any]] = {}

    def get_node_ids(self) -> Iterable[int]:
        if self.dead:
            raise ConnectionError("the SuperLink is gone")
        self.looks += 1
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            arrived, node = over_the_wire(message), message.metadata.dst_node_id
            self.asked.append((node, arrived))
            self._replies[arrived.metadata.message_id] = list(self.nodes[node](arrived))
            sent.append(arrived.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [reply for sent in message_ids for reply in self._replies.pop(sent, [])]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return found

    def rounds_of(self, node: int) -> list[Message]:
        """The training messages that a node was sent."""
        return [message for asked, message in self.asked if asked == node and message.metadata.message_type == "train"]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise NotImplementedError


def context(partition: Any) -> Context:
    """What a node knows of itself."""
    return Context(1, 1, {} if partition is None else {"partition-id": partition}, RecordDict(), {})


class FakeLink:
    """The part of a SuperLink that Flower's own HttpGrid talks to; `spoil` may change what a node has uploaded."""

    def __init__(self, nodes: dict[int, Node], spoil: Callable[[int, dict[str, bytes]], None]) -> None:
        self._nodes, self._spoil = nodes, spoil
        self._pushed: dict[str, bytes] = {}
        self._messages: dict[str, tuple[Any, Any]] = {}
        self._uploaded: dict[str, bytes] = {}

    def grid(self) -> HttpGrid:
        """Flower's grid, connected to this."""
        grid = HttpGrid(token="token")
        grid.set_run(Run.create_empty(run_id=1))
        grid._client = self
        return grid

    def GetNodes(self, request: Any) -> GetNodesResponse:  # noqa: N802 (Flower's name)
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in self._nodes])

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802 (Flower's name)
        ids = [message.metadata.message_id for message in request.messages_list]
        found = [tree.object_id for root in request.message_object_trees for tree in iterate_object_tree(root)]
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=found, session_id="session")

    def PushObject(self, request: Any) -> PushObjectResponse:  # noqa: N802 (Flower's name)
        self._pushed[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802 (Flower's name)
        protos, trees = [], []
        for sent in request.message_ids:
            asked = inflate_object_from_contents(sent, dict(self._pushed))
            asked.metadata.__dict__["_message_id"] = sent
            for reply in self._nodes[asked.metadata.dst_node_id](asked):
                reply.metadata.__dict__["_message_id"] = reply.object_id
                contents = {key: found.deflate() for key, found in get_all_nested_objects(reply).items()}
                if asked.metadata.message_type == "train":
                    self._spoil(asked.metadata.dst_node_id, contents)
                self._uploaded.update(contents)
                protos.append(message_to_proto(remove_content_from_message(reply)))
                trees.append(get_object_tree(reply))
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802 (Flower's name)
        content = self._uploaded[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:  # noqa: N802 (Flower's name)
        return ConfirmMessageReceivedResponse()
