"""Triton kernels of the training model, and the plain functions that define them.

Each has a backward pass of its own and makes one pass over its operands, which is what the time of a step goes into.
`python kernels.py` compares them with the plain functions, on a GPU or (TRITON_INTERPRET=1) without one.
"""

import torch
import triton
import triton.language as tl

WINDOW = 128


# --- one softmax over the window, the compressed entries and a sink -----------------------------------------------------


def plain_share(window, far, seen, sink):
    """window [B, S, H, 256] scores of the previous and own block, far [B, S, H, T], seen [B or 1, S, T], sink [H].

    Returns the weights of both, of the type of the scores.
    """
    length, kind = window.shape[1], window.dtype
    row = torch.arange(length, device=window.device).view(-1, 1)
    key = torch.arange(2 * WINDOW, device=window.device).view(1, -1) - WINDOW + row // WINDOW * WINDOW
    near = (key <= row) & (key > row - WINDOW) & (key >= 0)
    window = window.float().masked_fill(~near.unsqueeze(1), -1e30)
    far = far.float().masked_fill(~seen.unsqueeze(2), -1e30)
    sink = sink.float().view(1, 1, -1, 1).expand(*window.shape[:3], 1)
    weights = torch.cat([window, far, sink], -1).softmax(-1)
    return weights[..., : 2 * WINDOW].to(kind), weights[..., 2 * WINDOW : -1].to(kind)


@triton.jit
def share_forward(window, far, seen, sink, near_out, far_out, rest, length, heads, t, seen_batch, T: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head, at = row % heads, row // heads
    pos, batch = at % length, at // length
    near, cols = tl.arange(0, 256), tl.arange(0, T)
    key = near - 128 + pos // 128 * 128
    ok = (key <= pos) & (key > pos - 128) & (key >= 0)
    w = tl.load(window + row * 256 + near).to(tl.float32)
    w = tl.where(ok, w, -1e30)
    inside = cols < t
    f = tl.load(far + row * t + cols, mask=inside, other=0.0).to(tl.float32)
    see = tl.load(seen + (batch * seen_batch * length + pos) * t + cols, mask=inside, other=0)
    f = tl.where(inside & (see != 0), f, -1e30)
    s = tl.load(sink + head)
    top = tl.maximum(tl.maximum(tl.max(w, 0), tl.max(f, 0)), s)
    w, f, s = tl.exp(w - top), tl.exp(f - top), tl.exp(s - top)
    total = tl.sum(w, 0) + tl.sum(f, 0) + s
    tl.store(near_out + row * 256 + near, (w / total).to(near_out.dtype.element_ty))
    tl.store(far_out + row * t + cols, (f / total).to(far_out.dtype.element_ty), mask=inside)
    tl.store(rest + row, s / total)


@triton.jit
def share_backward(window, far, rest, dwindow, dfar, near_out, far_out, dsink, t, T: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    near, cols = tl.arange(0, 256), tl.arange(0, T)
    inside = cols < t
    w = tl.load(window + row * 256 + near).to(tl.float32)
    f = tl.load(far + row * t + cols, mask=inside, other=0.0).to(tl.float32)
    dw = tl.load(dwindow + row * 256 + near).to(tl.float32)
    df = tl.load(dfar + row * t + cols, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(w * dw, 0) + tl.sum(f * df, 0)
    tl.store(near_out + row * 256 + near, (w * (dw - mean)).to(near_out.dtype.element_ty))
    tl.store(far_out + row * t + cols, (f * (df - mean)).to(far_out.dtype.element_ty), mask=inside)
    tl.store(dsink + row, -tl.load(rest + row) * mean)


def width(n):
    return max(16, triton.next_power_of_2(n))


class Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, window, far, seen, sink):
        (batch, length, heads, t), window, far = far.shape, window.contiguous(), far.contiguous()
        rows = batch * length * heads
        near_out, far_out, rest = torch.empty_like(window), torch.empty_like(far), torch.empty(rows, device=far.device)
        each = int(seen.shape[0] > 1)
        warps = 8 if t > 512 else 4
        share_forward[(rows,)](
            window, far, seen, sink, near_out, far_out, rest, length, heads, t, each, T=width(t), num_warps=warps
        )
        ctx.save_for_backward(near_out, far_out, rest)
        return near_out, far_out

    @staticmethod
    def backward(ctx, dwindow, dfar):
        window, far, rest = ctx.saved_tensors
        t, dwindow, dfar = far.shape[-1], dwindow.contiguous(), dfar.contiguous()
        near_out, far_out, dsink = torch.empty_like(window), torch.empty_like(far), torch.empty_like(rest)
        warps = 8 if t > 512 else 4
        share_backward[(len(rest),)](window, far, rest, dwindow, dfar, near_out, far_out, dsink, t, T=width(t), num_warps=warps)
        return near_out, far_out, None, dsink.view(-1, far.shape[2]).sum(0)


# --- rope ---------------------------------------------------------------------------------------------------------------


def plain_turn(x, cos, sin, stride=1):
    """Rotates interleaved pairs of the last channels. x [B, S, H, D], cos and sin [positions, pairs], row s at s * stride."""
    at = torch.arange(x.shape[1], device=x.device) * stride
    cos, sin, rope = cos[at].unsqueeze(1), sin[at].unsqueeze(1), 2 * cos.shape[1]
    still, moving = x[..., :-rope].float(), x[..., -rope:].float().unflatten(-1, (-1, 2))
    a, b = moving[..., 0], moving[..., 1]
    return torch.cat([still, torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)], -1).to(x.dtype)


@triton.jit
def turn_kernel(x, out, cos, sin, length, heads, stride, sign, D: tl.constexpr, PAIRS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    pos = (row // heads) % length * stride
    channel = tl.arange(0, D)
    pair = channel // 2 - (D // 2 - PAIRS)
    moving = pair >= 0
    c = tl.load(cos + pos * PAIRS + pair, mask=moving, other=1.0)
    s = tl.load(sin + pos * PAIRS + pair, mask=moving, other=0.0) * sign
    own = tl.load(x + row * D + channel).to(tl.float32)
    other = tl.load(x + row * D + (channel ^ 1)).to(tl.float32)
    turned = own * c + tl.where(channel % 2 == 0, -other, other) * s
    tl.store(out + row * D + channel, turned.to(out.dtype.element_ty))


class Turn(torch.autograd.Function):
    @staticmethod
    def launch(x, cos, sin, stride, sign):
        batch, length, heads, dim = x.shape
        x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
        turn_kernel[(batch * length * heads,)](
            x, out, cos, sin, length, heads, stride, sign, D=dim, PAIRS=cos.shape[1], num_warps=1 if dim < 256 else 2
        )
        return out

    @staticmethod
    def forward(ctx, x, cos, sin, stride, sign):
        ctx.save_for_backward(cos, sin)
        ctx.stride, ctx.sign = stride, sign
        return Turn.launch(x, cos, sin, stride, sign)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return Turn.launch(grad, cos, sin, ctx.stride, -ctx.sign), None, None, None, None


# --- Sinkhorn ------------------------------------------------------------------------------------------------------------


def plain_sinkhorn(comb, iters, eps):
    """comb [rows, 4, 4]: columns, then (rows, columns) iters - 1 times."""
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


@triton.jit
def sinkhorn_forward(comb, out, sums, n, iters, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    four = tl.arange(0, 4)
    at = r[:, None, None] * 16 + four[None, :, None] * 4 + four[None, None, :]
    ok = (r < n)[:, None, None]
    c = tl.load(comb + at, mask=ok, other=1.0)
    where = r[:, None] * (8 * iters) + four[None, :]
    for i in range(iters):
        if i > 0:
            s = tl.sum(c, 2) + eps
            tl.store(sums + where + 8 * i - 4, s, mask=(r < n)[:, None])
            c = c / tl.reshape(s, (BLOCK, 4, 1))
        s = tl.sum(c, 1) + eps
        tl.store(sums + where + 8 * i, s, mask=(r < n)[:, None])
        c = c / tl.reshape(s, (BLOCK, 1, 4))
    tl.store(out + at, c, mask=ok)


@triton.jit
def sinkhorn_backward(out, sums, grad, dcomb, n, iters, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    four = tl.arange(0, 4)
    at = r[:, None, None] * 16 + four[None, :, None] * 4 + four[None, None, :]
    ok = (r < n)[:, None, None]
    c = tl.load(out + at, mask=ok, other=1.0)
    g = tl.load(grad + at, mask=ok, other=0.0)
    where = r[:, None] * (8 * iters) + four[None, :]
    for k in range(iters):
        i = iters - 1 - k
        s = tl.load(sums + where + 8 * i, mask=(r < n)[:, None], other=1.0)
        mean = tl.sum(c * g, 1)
        g = (g - tl.reshape(mean, (BLOCK, 1, 4))) / tl.reshape(s, (BLOCK, 1, 4))
        c = c * tl.reshape(s, (BLOCK, 1, 4))
        if i > 0:
            s = tl.load(sums + where + 8 * i - 4, mask=(r < n)[:, None], other=1.0)
            mean = tl.sum(c * g, 2)
            g = (g - tl.reshape(mean, (BLOCK, 4, 1))) / tl.reshape(s, (BLOCK, 4, 1))
            c = c * tl.reshape(s, (BLOCK, 4, 1))
    tl.store(dcomb + at, g, mask=ok)


class Sinkhorn(torch.autograd.Function):
    BLOCK = 64

    @staticmethod
    def forward(ctx, comb, iters, eps):
        comb, n = comb.contiguous(), len(comb)
        out, sums = torch.empty_like(comb), torch.empty(n, 8 * iters, device=comb.device)
        sinkhorn_forward[(triton.cdiv(n, Sinkhorn.BLOCK),)](comb, out, sums, n, iters, eps, BLOCK=Sinkhorn.BLOCK, num_warps=2)
        ctx.save_for_backward(out, sums)
        ctx.iters = iters
        return out

    @staticmethod
    def backward(ctx, grad):
        out, sums = ctx.saved_tensors
        n, dcomb = len(out), torch.empty_like(out)
        sinkhorn_backward[(triton.cdiv(n, Sinkhorn.BLOCK),)](
            out, sums, grad.contiguous(), dcomb, n, ctx.iters, BLOCK=Sinkhorn.BLOCK, num_warps=2
        )
        return dcomb, None, None


# --- the indexer's scores and loss -----------------------------------------------------------------------------------------


def plain_scores(dots, weights):
    """Sum over heads of weight * relu(dot). dots [rows, H, T], weights [rows, H] f32 -> [rows, T] f32."""
    return (dots.float().relu() * weights.unsqueeze(-1)).sum(1)


@triton.jit
def scores_forward(dots, weights, out, t, H: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, T)
    total = tl.zeros((T,), tl.float32)
    for h in range(H):
        d = tl.load(dots + (row * H + h) * t + cols, mask=cols < t, other=0.0).to(tl.float32)
        total += tl.maximum(d, 0.0) * tl.load(weights + row * H + h)
    tl.store(out + row * t + cols, total, mask=cols < t)


@triton.jit
def scores_backward(dots, weights, grad, ddots, dweights, t, H: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, T)
    g = tl.load(grad + row * t + cols, mask=cols < t, other=0.0)
    for h in range(H):
        at = (row * H + h) * t + cols
        d = tl.load(dots + at, mask=cols < t, other=0.0).to(tl.float32)
        w = tl.load(weights + row * H + h)
        tl.store(ddots + at, tl.where(d > 0, g * w, 0.0).to(ddots.dtype.element_ty), mask=cols < t)
        tl.store(dweights + row * H + h, tl.sum(tl.maximum(d, 0.0) * g, 0))


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dots, weights):
        (rows, heads, t), weights = dots.shape, weights.contiguous()
        out = torch.empty(rows, t, device=dots.device)
        scores_forward[(rows,)](dots, weights, out, t, H=heads, T=width(t), num_warps=4)
        ctx.save_for_backward(dots, weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        dots, weights = ctx.saved_tensors
        rows, heads, t = dots.shape
        ddots, dweights = torch.empty_like(dots), torch.empty_like(weights)
        scores_backward[(rows,)](dots, weights, grad.contiguous(), ddots, dweights, t, H=heads, T=width(t), num_warps=4)
        return ddots, dweights


CROWD = tl.constexpr(0.7)  # share of the newest entries in what the indexer learns, if they are to come first


def plain_index_loss(scores, heads, allowed, emphasis, length=0, crowd=0):
    """KL of the indexer's softmax to what it is to learn over the allowed entries, mean over rows that look far.

    It learns the attention's weights. With `crowd`, the newest so many entries share 0.7 and no older one has more than half of
    what each of them has. scores [rows, T] f32; heads [rows, H, T] attention weights; allowed [rows, T]; emphasis [rows] weight
    of each row; row i is at position i % length, where (i % length + 1) // 4 entries are ready.
    """
    wanted = heads.float().sum(1) * allowed
    if crowd:
        ready = (torch.arange(len(scores), device=scores.device) % length + 1) // 4
        newest = allowed & (torch.arange(scores.shape[1], device=scores.device) >= ready.unsqueeze(1) - crowd)
        wanted = wanted * ~newest
    mass = wanted.sum(-1)
    wanted = wanted / mass.clamp(min=1e-6).unsqueeze(-1)
    if crowd:
        each = CROWD.value / crowd
        wanted = (wanted * (1 - CROWD.value)).clamp(max=each / 2) + newest * each
        wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-6)
    held = torch.log_softmax(scores.masked_fill(~allowed, -1e9), -1)
    kl = (wanted * ((wanted + 1e-9).log() - held)).sum(-1)
    weight = mass.clamp(max=1.0) * emphasis
    return (kl * weight).sum() / weight.sum().clamp(min=1e-3)


@triton.jit
def index_kernel(
    scores, heads, allowed, grad, kl, mass, length, t, allowed_batch, crowd: tl.constexpr, H: tl.constexpr, T: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, T)
    inside = cols < t
    mask_row = row // length * allowed_batch * length + row % length
    may = (tl.load(allowed + mask_row * t + cols, mask=inside, other=0) != 0) & inside
    p = tl.zeros((T,), tl.float32)
    for h in range(H):
        p += tl.load(heads + (row * H + h) * t + cols, mask=inside, other=0.0).to(tl.float32)
    newest = may & (cols >= (row % length + 1) // 4 - crowd) & (crowd > 0)
    p = tl.where(may & ~newest, p, 0.0)
    m = tl.sum(p, 0)
    p = p / tl.maximum(m, 1e-6)
    if crowd > 0:
        p = tl.where(newest, CROWD / crowd, tl.minimum(p * (1 - CROWD), CROWD / crowd / 2))
        p = p / tl.maximum(tl.sum(p, 0), 1e-6)
    s = tl.load(scores + row * t + cols, mask=inside, other=0.0)
    s = tl.where(may, s, -1e9)
    s = s - tl.max(s, 0)
    e = tl.exp(s)
    total = tl.sum(e, 0)
    tl.store(kl + row, tl.sum(p * (tl.log(p + 1e-9) - (s - tl.log(total))), 0))
    tl.store(mass + row, m)
    tl.store(grad + row * t + cols, tl.where(may, e / total * tl.sum(p, 0) - p, 0.0), mask=inside)


class IndexLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, heads, allowed, emphasis, crowd):
        rows, count, t = heads.shape
        length = allowed.shape[1]
        grad = torch.empty(rows, t, device=scores.device)
        kl, mass = torch.empty(rows, device=scores.device), torch.empty(rows, device=scores.device)
        index_kernel[(rows,)](
            scores, heads, allowed, grad, kl, mass, length, t, int(allowed.shape[0] > 1), crowd, H=count, T=width(t), num_warps=4
        )
        weight = mass.clamp(max=1.0) * emphasis
        total = weight.sum().clamp(min=1e-3)
        ctx.save_for_backward(grad, weight / total)
        return (kl * weight).sum() / total

    @staticmethod
    def backward(ctx, out):
        grad, weight = ctx.saved_tensors
        return grad * (weight * out).unsqueeze(-1), None, None, None, None


# --- which of both runs ------------------------------------------------------------------------------------------------------


def share(window, far, seen, sink):
    if not window.is_cuda:
        return plain_share(window, far, seen, sink)
    return Share.apply(window, far, seen.contiguous(), sink)


def turn(x, cos, sin, stride=1, back=False):
    if not x.is_cuda:
        return plain_turn(x, cos, -sin if back else sin, stride)
    return Turn.apply(x, cos, sin, stride, -1.0 if back else 1.0)


def sinkhorn(comb, iters, eps):
    return Sinkhorn.apply(comb, iters, eps) if comb.is_cuda else plain_sinkhorn(comb, iters, eps)


def scores(dots, weights):
    return Scores.apply(dots, weights) if dots.is_cuda else plain_scores(dots, weights)


def index_loss(scores, heads, allowed, emphasis, crowd=0):
    """allowed [B or 1, S, T]; see `plain_index_loss` for the rest."""
    if not scores.is_cuda:
        length = allowed.shape[1]
        batch = len(scores) // length
        return plain_index_loss(scores, heads, allowed.expand(batch, -1, -1).flatten(0, 1), emphasis, length, crowd)
    return IndexLoss.apply(scores, heads, allowed.contiguous(), emphasis, crowd)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    def compare(what, plain, fast, *inputs):
        """Largest differences of outputs and gradients relative to the largest value."""
        results = []
        for function in (plain, fast):
            mine = [i.clone().requires_grad_(i.is_floating_point()) if torch.is_tensor(i) else i for i in inputs]
            copies = [i * 1 if torch.is_tensor(i) and i.is_floating_point() else i for i in mine]
            out = function(*copies)
            out = out if isinstance(out, tuple) else (out,)
            generator = torch.Generator(device).manual_seed(1)
            loss = sum((o.float() * torch.randn(o.shape, device=device, generator=generator)).sum() for o in out)
            loss.backward()
            results.append([*out, *(i.grad for i in mine if torch.is_tensor(i) and i.grad is not None)])
        assert len(results[0]) == len(results[1]), what
        worst = max(((a - b).abs().max() / a.abs().max().clamp(min=1e-9)).item() for a, b in zip(*results))
        print(f"{what}: {worst:.1e}")
        assert worst < 2e-4, what

    draw = lambda *shape: torch.randn(*shape, device=device)
    for t, batch in ((1, 1), (3, 2), (40, 2)):
        seen = torch.rand(batch, 256, t, device=device) < 0.5
        compare(f"share, {t} entries", plain_share, Share.apply, draw(2, 256, 2, 256), draw(2, 256, 2, t), seen, draw(2))
    cos, sin = draw(1024, 4), draw(1024, 4)
    for stride in (1, 4):
        compare("turn", lambda x: plain_turn(x, cos, sin, stride), lambda x: Turn.apply(x, cos, sin, stride, 1.0), draw(2, 5, 3, 32))
        compare("turn back", lambda x: plain_turn(x, cos, -sin, stride), lambda x: Turn.apply(x, cos, sin, stride, -1.0), draw(2, 5, 3, 32))
    comb = draw(70, 4, 4).softmax(-1) + 1e-6
    compare("sinkhorn", lambda c: plain_sinkhorn(c, 20, 1e-6), lambda c: Sinkhorn.apply(c, 20, 1e-6), comb)
    compare("scores", plain_scores, Scores.apply, draw(9, 4, 21), draw(9, 4))
    allowed = torch.rand(2, 90, 21, device=device) < 0.6
    allowed[0, 0] = False
    heads, emphasis = torch.rand(180, 4, 21, device=device) * 0.05, torch.rand(180, device=device)
    for crowd in (0, 3):
        compare(
            f"index loss, {crowd} newest first",
            lambda s: plain_index_loss(s, heads, allowed.flatten(0, 1), emphasis, allowed.shape[1], crowd),
            lambda s: IndexLoss.apply(s, heads, allowed, emphasis, crowd),
            draw(2 * 90, 21),
        )


if __name__ == "__main__":
    main()
