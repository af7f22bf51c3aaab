"""The computations that graphs capture: forwards over static KV that read static inputs alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache

from specbench_kit.models.executors.card_decoder import CardDecoder, Place, PlacedKV
from specbench_kit.models.executors.graph_inputs import GraphInputs, GraphShape
from specbench_kit.models.executors.graph_trees import GrownOnCard, TreeBoard, paths_to
from specbench_kit.models.executors.graph_work import COLUMNS
from specbench_kit.models.executors.kernels.compact_mask import CompactMask
from specbench_kit.models.executors.kernels.description import (
    DETAILS,
    FIELDS,
    Describe,
    Details,
)
from specbench_kit.models.executors.kv import KVStore
from specbench_kit.models.executors.tree_rule import TreeRule


class StaticKV(Cache, PlacedKV):
    """Gives a transformers model the slots of one shape, and places on the card into which new KV
    is written.
    """

    def __init__(self, store: KVStore, shape: GraphShape, cells: Tensor, slots: Tensor) -> None:
        super().__init__(layers=[])
        self._store = store
        self._shape = shape
        self._cells = cells
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        stored = self._store.layers[layer_idx]
        for kept, new in zip(stored, (key_states, value_states), strict=True):
            kept[self._slots, :, self._cells] = new.permute(0, 2, 1, 3)
        return self.attended(layer_idx, key_states, value_states)

    def place(self, layer: int) -> Place:
        return Place(*self._store.layers[layer], self._slots, self._cells)

    def attended(self, layer: int, new_keys: Tensor, new_values: Tensor) -> tuple[Tensor, Tensor]:
        shape = self._shape
        keys, values = (
            kept[shape.first : shape.first + shape.rows, :, : shape.length]
            for kept in self._store.layers[layer]
        )
        return keys, values

    def get_seq_length(self, *_args: Any, **_kwargs: Any) -> int:
        return self._shape.length - self._shape.width


class PromptKV(PlacedKV):
    """Writes the KV of a prompt into the slot that a number on the card names; the prompt attends
    to itself alone.
    """

    def __init__(self, store: KVStore, cells: Tensor, slot: Tensor) -> None:
        self._store = store
        self._cells = cells
        self._slot = slot[:, None]

    def place(self, layer: int) -> Place:
        return Place(*self._store.layers[layer], self._slot, self._cells)

    def attended(self, layer: int, new_keys: Tensor, new_values: Tensor) -> tuple[Tensor, Tensor]:
        return new_keys, new_values


class GraphMemory:
    """The tensors of one executor that its graphs share.

    `board` [slots, COLUMNS, FIELDS] holds the results of the last work, or `details` [slots, COLUMNS, FIELDS + DETAILS]
    those of work that describes its distributions; `linked` tokens that another executor has left
    on the card. A chain goes on from `token` and `cell` of every slot, and writes column `column` of the board next.
    """

    def __init__(
        self,
        store: KVStore,
        slots: int,
        capacity: int,
        device: torch.device,
        describe: Describe,
    ) -> None:
        self.store = store
        self.describe = describe
        self.slots = slots
        self.trash = capacity - 1
        self.board = torch.zeros((slots, COLUMNS, FIELDS), dtype=torch.float64, device=device)
        self.host_board = torch.zeros(
            (slots, COLUMNS, FIELDS), dtype=torch.float64, pin_memory=True
        )
        size = (slots, COLUMNS, FIELDS + DETAILS)
        self.details = torch.zeros(size, dtype=torch.float64, device=device)
        self.host_details = torch.zeros(size, dtype=torch.float64, pin_memory=True)
        self.linked = torch.zeros(slots * COLUMNS, dtype=torch.int64, device=device)
        self.token = torch.zeros(slots, dtype=torch.int64, device=device)
        self.cell = torch.full((slots,), self.trash, dtype=torch.int64, device=device)
        self.column = torch.zeros(1, dtype=torch.int64, device=device)
        self._keys = torch.arange(capacity, device=device)
        self._slots = torch.arange(slots, device=device)[:, None]
        self._tree_boards: dict[TreeRule, TreeBoard] = {}
        """The boards of trees by their rule; most executors need none."""

    def tree_board(self, rule: TreeRule) -> TreeBoard:
        """Return the board of trees that grow by a rule."""
        if rule not in self._tree_boards:
            self._tree_boards[rule] = TreeBoard(self.slots, rule, self._keys.device)
        return self._tree_boards[rule]

    @property
    def places(self) -> Tensor:
        """Return all places that a token of a slot may have."""
        return self._keys

    @property
    def state(self) -> list[Tensor]:
        """Return the tensors that a forward changes besides KV."""
        return [self.board, self.details, self.token, self.cell, self.column]

    def window(self, shape: GraphShape, cells: Tensor) -> StaticKV:
        """Return the KV of the slots of a shape, whose new tokens are written to `cells` [rows,
        width].
        """
        return StaticKV(self.store, shape, cells, self.slots_of(shape))

    def slots_of(self, shape: GraphShape) -> Tensor:
        """Return the numbers [rows, 1] of the slots of a shape."""
        return self._slots[shape.first : shape.first + shape.rows]

    def tokens(self, inputs: GraphInputs) -> Tensor:
        """Return the tokens [rows, width], of which some were left by another executor."""
        number = (-1 - inputs.tokens).clamp(min=0)
        return torch.where(inputs.tokens < 0, self.linked[number], inputs.tokens)

    def chain_mask(self, cells: Tensor, length: int) -> CompactMask:
        """Return the mask of tokens that attend to all before them and to themselves."""
        return CompactMask(self._keys[:length], cells, self.trash, cells)

    def prompt_mask(self, cells: Tensor) -> CompactMask:
        """Return the mask of a prompt [1, width], of which every token attends to those before
        it.
        """
        places = self._keys[: cells.shape[1]]
        return CompactMask(places, cells, self.trash, places[None])

    def tree_mask(self, inputs: GraphInputs) -> CompactMask:
        """Return the mask of tokens that attend to their prefix and their ancestors."""
        assert inputs.ancestors is not None
        return self.node_mask(
            inputs.ancestors, inputs.prefixes[:, None], inputs.cells, inputs.shape.length
        )

    def node_mask(
        self, ancestors: Tensor, prefixes: Tensor, cells: Tensor, length: int
    ) -> CompactMask:
        """Return the mask of nodes in `cells` [rows, width] that attend to a prefix [rows, 1] and,
        of the nodes after it, to `ancestors` [rows, width, nodes].
        """
        last = (prefixes - 1).expand(-1, cells.shape[1])
        return CompactMask(self._keys[:length], cells, self.trash, last, prefixes, ancestors)

    def write(
        self,
        shape: GraphShape,
        columns: Tensor | slice,
        logits: Tensor,
        tokens: Tensor,
        details: Details,
        slot: Tensor | None = None,
    ) -> Tensor:
        """Write what follows from logits [rows, columns, vocabulary] after some tokens [rows,
        columns] to the board.

        It goes to the rows of the shape, or to the first column of the one slot that is given as a
        number on the card. Return the most likely next tokens [rows, columns].
        """
        packed, best = self.describe(logits, tokens, details)
        board = self.details if details.temperature else self.board
        board = board[..., : packed.shape[-1]]
        if slot is not None:
            board[slot, 0] = packed[:, 0]
            return best
        board = board[shape.first : shape.first + shape.rows]
        if isinstance(columns, slice):
            board[:, columns] = packed
        else:
            board.index_copy_(1, columns, packed)
        return best


class GraphComputations:
    """What graphs capture of one model: each returns logits, and hidden states by layer.

    Forwards are computed by `decoder` if there is one, otherwise by the model's own code.
    """

    def __init__(
        self, model: Any, decoder: CardDecoder | None, memory: GraphMemory, vocabulary: int | None
    ) -> None:
        self._model = model
        self._decoder = decoder
        self._memory = memory
        self._vocabulary = vocabulary
        with torch.inference_mode():
            self._turns = decoder.turns_of(memory.places) if decoder is not None else None

    def forward(
        self, inputs: GraphInputs, layers: Sequence[int], details: Details
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute a forward from its inputs, and write the results of every column."""
        inputs.copy()
        memory = self._memory
        shape = inputs.shape
        tokens = memory.tokens(inputs)
        mask = (
            memory.tree_mask(inputs)
            if shape.nodes
            else memory.chain_mask(inputs.cells, shape.length)
        )
        logits, hidden = self._forward(
            shape, tokens, inputs.cells, inputs.places, mask, layers, inputs
        )
        memory.write(shape, slice(shape.width), logits, tokens, details)
        return logits, hidden

    def chain(
        self, inputs: GraphInputs, steps: int, details: Details
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute a chain: a forward from its inputs, and further ones from the token that each has
        chosen.
        """
        inputs.copy()
        memory = self._memory
        shape = inputs.shape
        slots = slice(shape.first, shape.first + shape.rows)
        tokens = memory.tokens(inputs)
        last = inputs.last[:, None]
        mask = memory.chain_mask(inputs.cells, shape.length)
        logits, _ = self._forward(shape, tokens, inputs.cells, inputs.places, mask, inputs=inputs)
        logits = logits.gather(1, last[..., None].expand(-1, -1, logits.shape[-1]))[:, 0]
        best = memory.write(shape, slice(1), logits[:, None], tokens.gather(1, last), details)
        memory.token[slots] = best[:, 0]
        memory.cell[slots] = (inputs.cells.gather(1, last)[:, 0] + 1).clamp(max=memory.trash)
        memory.column.fill_(1)
        if steps == 1:
            return logits[None], {}
        further, _ = self.steps(shape, steps - 1, details)
        return torch.cat((logits[None], further)), {}

    def prompt(self, inputs: GraphInputs, details: Details) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute a prompt from its inputs: the logits after its last token, from where a chain may
        go on.
        """
        assert self._decoder is not None
        inputs.copy()
        memory = self._memory
        tokens = memory.tokens(inputs)
        last = inputs.last[:, None]
        mask = memory.prompt_mask(inputs.cells)
        kv = PromptKV(memory.store, inputs.cells, inputs.slot)
        logits, _ = self._decoder(
            tokens, inputs.places, mask, kv, last=inputs.last, turns=self._turns
        )
        logits = logits[..., : self._vocabulary]
        best = memory.write(
            inputs.shape, slice(1), logits, tokens.gather(1, last), details, inputs.slot
        )
        memory.token[inputs.slot] = best[:, 0]
        memory.cell[inputs.slot] = (inputs.cells.gather(1, last)[:, 0] + 1).clamp(max=memory.trash)
        memory.column.fill_(1)
        return logits.transpose(0, 1), {}

    def trees(
        self, inputs: GraphInputs, rule: TreeRule, details: Details
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute a forward from its inputs, and all levels of the trees that grow by a rule below
        the last token of each row.
        """
        inputs.copy()
        memory = self._memory
        shape = inputs.shape
        tokens = memory.tokens(inputs)
        last = inputs.last[:, None]

        def forward(
            tokens: Tensor,
            cells: Tensor,
            places: Tensor,
            mask: CompactMask,
            inputs: GraphInputs | None = None,
            above: Tensor | None = None,
        ) -> Tensor:
            width = tokens.shape[1]
            of_level = shape._replace(width=width)
            return self._forward(of_level, tokens, cells, places, mask, (), inputs, above)[0]

        mask = memory.chain_mask(inputs.cells, shape.length)
        logits = forward(tokens, inputs.cells, inputs.places, mask, inputs)
        logits = logits.gather(1, last[..., None].expand(-1, -1, logits.shape[-1]))
        board = memory.tree_board(rule)
        grown = GrownOnCard(
            rule,
            details,
            board,
            shape.first,
            forward,
            memory.node_mask,
            memory.describe,
            shape.length,
        )
        root, cell, place = (part.gather(1, last) for part in (tokens, inputs.cells, inputs.places))
        return grown.grow(logits, root, cell, place, memory.trash), {}

    def selected(
        self,
        inputs: GraphInputs,
        rule: TreeRule,
        board: TreeBoard,
        layers: Sequence[int],
        width: int,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute a forward of the nodes that the rule of another executor's trees has selected,
        and of what KV lacks up to their roots.

        The last input of each row is the slot of its tree. The forward is padded to `width` tokens
        of each row. Return the logits after the root and after each node.
        """
        inputs.copy()
        memory = self._memory
        shape = inputs.shape
        trash = memory.trash
        last = inputs.last[:, None]
        nodes = board.selected[inputs.tokens.gather(1, last)[:, 0]]
        nodes = pad(nodes, (0, 0, 0, width - (shape.width - 1) - rule.budget))
        # The roots of all rows stand in one column, and padding before what leads to them. What is
        # padding is written to the last cell, which nothing attends to.
        before = torch.arange(1 - shape.width, 0, device=last.device) + last
        tokens, cells, places = (
            part.gather(1, before.clamp(min=0))
            for part in (inputs.tokens, inputs.cells, inputs.places)
        )
        cells = cells.masked_fill(before < 0, trash)
        cell = cells[:, -1:]
        above = torch.cat((torch.zeros_like(cell), nodes[..., 1]), 1)
        is_node = torch.cat((torch.zeros_like(cell), nodes[..., 2]), 1).bool()
        columns = torch.arange(above.shape[1], device=last.device)
        node_cells = (cell + columns).masked_fill(~is_node, trash).clamp(max=trash)
        paths = paths_to(above, rule.levels)
        # What leads to a root is no node: it attends to what stands before it.
        nodes_of = pad(paths[:, 1:].to(torch.uint8), (0, 0, shape.width - 1, 0))
        last = torch.cat((cells, (cell - 1).expand(-1, above.shape[1] - 1)), 1)
        cells = torch.cat((cells, node_cells[:, 1:]), 1)
        mask = memory.node_mask(nodes_of, cell, cells, shape.length)._replace(last=last)
        tokens = torch.cat((tokens, nodes[..., 0]), 1)
        logits, hidden = self._forward(
            shape._replace(width=tokens.shape[1]),
            tokens,
            cells,
            torch.cat((places, places[:, -1:] + paths[:, 1:].sum(-1) - 1), 1),
            mask,
            layers,
        )
        kept = slice(shape.width - 2, shape.width - 1 + rule.budget)
        logits = logits[:, kept]
        above = above.masked_fill(~is_node, -1)[:, : 1 + rule.budget, None]
        fields = memory.describe(logits, tokens[:, kept], Details()).fields
        board.verified[shape.first : shape.first + shape.rows] = torch.cat(
            (fields, above.double()), -1
        )
        return logits, {layer: states[:, kept] for layer, states in hidden.items()}

    def steps(
        self, shape: GraphShape, steps: int, details: Details
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute steps of a chain from the token and the cell of every slot, and leave those of
        the next step.
        """
        memory = self._memory
        shape = shape._replace(width=1)
        slots = slice(shape.first, shape.first + shape.rows)
        token = memory.token[slots]
        cell = memory.cell[slots]
        all_logits: list[Tensor] = []
        for _ in range(steps):
            own = token[:, None].clone()
            cells = cell[:, None].clone()
            logits = self._forward(
                shape, own, cells, cells, memory.chain_mask(cells, shape.length)
            )[0][:, 0]
            token.copy_(memory.write(shape, memory.column, logits[:, None], own, details)[:, 0])
            cell.add_(1).clamp_(max=memory.trash)
            memory.column.add_(1)
            all_logits.append(logits)
        return torch.stack(all_logits), {}

    def _forward(
        self,
        shape: GraphShape,
        tokens: Tensor,
        cells: Tensor,
        places: Tensor,
        mask: CompactMask,
        layers: Sequence[int] = (),
        inputs: GraphInputs | None = None,
        above: Tensor | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Compute one forward; `inputs` are what the host filled in, None for a further step of a
        chain or of trees. `above` [rows, width] are the cells of the nodes above those of trees.
        """
        kv = self._memory.window(shape, cells)
        if self._decoder is not None:
            logits, hidden = self._decoder(tokens, places, mask, kv, layers, turns=self._turns)
            return logits[..., : self._vocabulary], hidden
        output = self._model(
            input_ids=tokens,
            position_ids=places,
            attention_mask=mask.additive(self._model.dtype),
            past_key_values=kv,
            use_cache=True,
            output_hidden_states=bool(layers),
        )
        return output.logits[..., : self._vocabulary], {
            layer: output.hidden_states[layer] for layer in layers
        }
