"""Kinds of networks and layers, and ways to train them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

from .networks import (
    SGD,
    WIDTH,
    Gpt,
    Of,
    Residual,
    adversarial,
    cnn,
    gradients,
    images,
    itself,
    mean_square,
    mlp,
    of_tokens,
    programs_of,
    states,
    through,
    tokens,
    train,
    vectors,
)

# --- kinds of networks ----------------------------------------------------------------------------

NETWORKS = {
    "batch_norm_moves_its_statistics_once": lambda: train(cnn(), images()),
    "dropout_draws_its_numbers_once": lambda: train(
        cnn(nn.Dropout(0.3), nn.Dropout2d(0.2)), images()
    ),
    "dropout_in_place": lambda: train(mlp(nn.Dropout(0.5, inplace=True), nn.ReLU(True)), vectors()),
    "residual_blocks_with_sums_in_place": lambda: train(cnn(Residual(), Residual()), images()),
    "language_model": lambda: train(Gpt(), tokens(), loss_of=of_tokens),
    "language_model_with_plain_attention": lambda: train(
        Gpt(is_fused=False), tokens(), loss_of=of_tokens
    ),
    "generator_and_discriminator": adversarial,
}


def other_norms_and_pools():
    layers = nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.InstanceNorm2d(16), nn.AvgPool2d(2)
    return train(cnn(*layers, nn.Hardswish(), nn.SiLU(), nn.ELU()), images())


def recurrent_layers_and_attention():
    lstm = nn.LSTM(WIDTH, 128, 2, batch_first=True)
    attention = nn.MultiheadAttention(128, 4, dropout=0.1, batch_first=True)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)

    def apart(x):
        h, _ = lstm(x)
        h, _ = attention(h, h, h)
        return layer(h)

    batch = torch.randn(16, 32, WIDTH), None
    return train(apart, batch, loss_of=mean_square, of=[lstm, attention, layer])


def a_loop_of_recurrent_cells():
    cell, out = nn.GRUCell(32, 64), nn.Linear(64, 4)

    def loop(x):
        h = torch.zeros(256, 64)
        for step in x:
            h = cell(step, h)
        return out(h)

    return train(loop, (torch.randn(10, 256, 32), torch.randint(4, (256,))), of=[cell, out])


# --- layers ---------------------------------------------------------------------------------------


def packed_sequences():
    def forward(self, x):
        lengths = torch.randint(1, 20, (x.size(0),))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.out(F.gelu(h)).mean(1)

    def packed(kind):
        cells = kind(WIDTH, 64, 2, batch_first=True, bidirectional=True, dropout=0.2)
        return Of(forward, cells=cells, out=nn.Linear(128, 4))

    batch = torch.randn(64, 20, WIDTH), torch.randint(4, (64,))
    return [train(packed(kind), batch, 2) for kind in (nn.RNN, nn.GRU, nn.LSTM)]


def bags_of_embeddings():
    bags = Of(
        lambda self, ids: self.out(torch.tanh(self.bag(ids)) * self.most(ids).exp()),
        bag=nn.EmbeddingBag(100, 256, mode="mean", max_norm=1.0),
        most=nn.EmbeddingBag(100, 256, mode="max"),
        out=nn.Linear(256, 4),
    )
    return train(bags, (torch.randint(100, (128, 16)), torch.randint(4, (128,))))


def scattered_sums():
    index, rows = torch.randint(64, (256, 256)), torch.randint(256, (300,))

    def change(h):
        sums = torch.zeros(256, 256).scatter_add(1, index, h.exp())
        sums = sums.index_put((rows,), h[rows].tanh(), accumulate=True)
        sums.scatter_(1, index[:, :8], 0.5).index_add_(0, rows[:64], h[:64].sigmoid())
        return sums.gather(1, index) * sums.cumsum(1).masked_fill(index > 32, 0.1)

    return through(change)


def kinds_of_dropout():
    layers = nn.Dropout1d(0.2), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2), nn.RReLU()
    model = nn.Sequential(nn.Conv1d(8, 16, 3), *layers, nn.Flatten(), nn.Linear(2272, 4))
    return train(model, (torch.randn(32, 8, 144), torch.randint(4, (32,))))


def batch_norm_that_switches_in_a_forward():
    def forward(self, x):
        self.count += 1
        one = self.layers[1](self.layers[0](x))
        self.layers[1].eval()
        other = F.relu(self.layers[1](one * 2))
        self.layers[1].train()
        self.layers[1].momentum = 0.1 / self.count
        return self.layers[3:](F.relu_(self.layers[1](one)) + other)

    return train(Of(forward, layers=cnn(), count=0), images())


# --- ways to train --------------------------------------------------------------------------------


def mixed_precision():
    model, (x, y), losses = mlp(), vectors(), []
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for is_inside in (False, True, False, True):  # the backward outside of autocast, or inside
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
            if is_inside:
                scaler.scale(loss).backward()
        if not is_inside:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, scaler.get_scale(), states(model)


def half_and_double_precision():
    x, y = vectors()
    narrow = train(mlp().bfloat16(), (x.bfloat16(), y))
    return narrow, train(mlp().double(), (x.double(), y))


def autocast_with_its_cache():
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.b(F.gelu(self.a(x)))
            h = self.b(F.gelu(self.a(h)))
            with torch.autocast("cpu", enabled=False):
                h = F.layer_norm(h.float(), (WIDTH,))
        return self.b(F.silu(self.a(h)))

    model = Of(forward, a=nn.Linear(WIDTH, 512), b=nn.Linear(512, WIDTH))
    return train(model, vectors(), loss_of=mean_square)


def closures_of_an_optimizer():
    model = mlp(width=64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = vectors(512)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)], states(model)


def batches_of_varying_size():
    model = cnn()
    optimizer = SGD(model.parameters(), lr=0.05)
    return [train(model, images(count), 1, optimizer) for count in (8, 3, 12, 5, 9)]


def evaluation_between_steps():
    model, batch = cnn(), images()
    first = train(model, batch, 1)
    model.eval()
    with torch.no_grad():
        out = model(batch[0])
    frozen = train(model, batch, 2)  # running statistics are inputs now
    model.train()
    return first, out, frozen, train(model, batch, 1)


def layers_that_are_frozen():
    model = mlp()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return train(model, vectors(), optimizer=SGD(trained, lr=0.1))


def images_with_channels_last():
    x, y = images()
    model = cnn().to(memory_format=torch.channels_last)
    return train(model, (x.to(memory_format=torch.channels_last), y))


def sparse_gradients():
    model = nn.Sequential(nn.Embedding(100, 64, sparse=True), nn.Flatten(), nn.GELU())
    optimizer = SGD(model.parameters(), lr=0.1)
    return train(model, (torch.randint(100, (64, 16)), None), 3, optimizer, mean_square)


# --- weights --------------------------------------------------------------------------------------


def weights_made_from_other_weights():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 256)),
        nn.GELU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(256, 256)),
        nn.Linear(256, 4),
    )
    return train(model, vectors())


def shared_weights_and_repeated_calls():
    model, x = nn.Sequential(nn.Linear(256, 256), nn.GELU()), torch.randn(256, 256)
    (model(model(model(x))).sum() + model(x).pow(2).sum()).backward()
    return gradients(model)


def weights_that_a_forward_makes():
    def forward(self, x):
        weight = torch.tanh(self.maker(x[0, :8])).view(WIDTH, WIDTH)
        return F.linear(F.gelu(F.linear(x, weight, self.bias)), weight.t())

    bias = nn.Parameter(torch.zeros(WIDTH))
    hyper = Of(forward, maker=nn.Linear(8, WIDTH * WIDTH), bias=bias)
    return train(hyper, vectors(), loss_of=mean_square)


def weights_replaced_before_the_backward():
    model = mlp()
    loss = model(vectors()[0]).pow(2).sum()
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5
    loss.backward()
    return gradients(model)


def weights_swapped_and_swapped_back():
    model, (x, y) = mlp(), vectors()
    averages = [parameter.detach() * 0.9 for parameter in model.parameters()]
    loss = F.cross_entropy(model(x), y)
    kept = [parameter.data for parameter in model.parameters()]
    for parameter, average in zip(model.parameters(), averages, strict=True):
        parameter.data = average
    with torch.no_grad():
        between = model(x)
    for parameter, before in zip(model.parameters(), kept, strict=True):
        parameter.data = before
    loss.backward()
    return between, gradients(model)


def weights_changed_by_hand_through_data():
    model, (x, y) = mlp(), vectors()
    losses = []
    for _ in range(3):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
        loss.backward()
        losses.append(loss.item())
    return losses, states(model)


def weights_changed_in_a_forward_hook():
    model = mlp()

    def decay(module, args, out):
        module.weight.data.mul_(0.99)

    model[0].register_forward_hook(decay)
    return train(model, vectors())


def a_large_buffer_that_changes_after_its_use():
    def forward(self, x):
        out = F.gelu(self.layer(x)) * self.mask
        self.mask = torch.roll(self.mask, 1)
        return out.sum() + self.last(x).sum()

    parts = {"layer": nn.Linear(WIDTH, 256), "last": mlp(), "mask": torch.rand(256, 256)}
    return train(Of(forward, **parts), vectors(), loss_of=itself)


def constants_that_change():
    """They change from one iteration to the next, as a number and as a tensor."""

    def forward(self, x):
        self.t *= 0.7
        h = F.leaky_relu(F.gelu(self.a(x)) * self.t, self.t / 3) + self.shift
        self.shift.mul_(0.9)
        return self.b(torch.exp(h))

    parts = {"a": nn.Linear(WIDTH, 512), "b": nn.Linear(512, 4), "shift": torch.tensor(1.0)}
    return train(Of(forward, **parts, t=1.0), vectors())


# --- checkpoints ----------------------------------------------------------------------------------


def _checkpointed(use_reentrant):
    checked = Of(
        lambda self, x: self.b(checkpoint(self.a, self.first(x), use_reentrant=use_reentrant)),
        a=nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Dropout(0.2)),
        b=mlp()[1:],
        first=nn.Linear(WIDTH, WIDTH),
    )
    return train(checked, vectors())


def checkpoints_of_the_user():
    return _checkpointed(use_reentrant=False)


def reentrant_checkpoints_of_the_user():
    return _checkpointed(use_reentrant=True)


def checkpoints_within_checkpoints():
    def inner(x):
        return F.gelu(checkpoint(deep.a, x, use_reentrant=False)).exp()

    deep = Of(
        lambda self, x: self.b(checkpoint(inner, x.sigmoid(), use_reentrant=False).tanh()),
        a=nn.Linear(WIDTH, 256),
        b=nn.Sequential(nn.Dropout(0.1), nn.Linear(256, 4)),
    )
    return train(deep, vectors())


PROGRAMS = NETWORKS | programs_of(__name__)
