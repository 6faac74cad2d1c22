// What the host does itself between the calls of plugins: embedding, norms, rope, products, the shared expert, logits.
// Everything but the weights is f32.

#include "activation.cuh"
#include "gemm.cuh"
#include "stream.cuh"
#include "sampling.cuh"

struct EmbedParams {
    // `[vocab, hidden]` f32 or bf16.
    HotseamTensorRef table;
    // `[rows]`; a token that is not in the table gives zeros.
    const int32_t *tokens;
    // `[rows, hc, hidden]`, the streams of a row alike.
    float *streams;
    unsigned hc;
};

// Grid: slices of 256 channels, rows.
KERNEL_BOUNDED(hotseam_ops_embed, EmbedParams, 256) {
    long long hidden = p.table.shape[1], d = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (d >= hidden) return;
    int token = p.tokens[blockIdx.y];
    bool known = token >= 0 && token < p.table.shape[0];
    float value = known ? weight_value(tensor_row(p.table, token, hidden), d) : 0.0f;
    float *to = p.streams + (long long)blockIdx.y * p.hc * hidden + d;
    for (unsigned i = 0; i < p.hc; i++) to[i * hidden] = value;
}

struct NormParams {
    // `[rows, width]`; `out` may be `x`.
    const float *x;
    const float *weight;
    float *out;
    unsigned width;
    float eps;
};

// RMS norm. Grid: rows.
KERNEL_BOUNDED(hotseam_ops_rms_norm, NormParams, 1024) {
    SHARED float scratch[WARPS_MOST];
    const float *x = p.x + (long long)blockIdx.x * p.width;
    float *out = p.out + (long long)blockIdx.x * p.width;
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < p.width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    float scale = 1.0f / sqrtf(block_sum(sum, scratch) / p.width + p.eps);
    for (unsigned i = threadIdx.x; i < p.width; i += blockDim.x) out[i] = x[i] * scale * p.weight[i];
}

struct HeadsParams {
    // `[rows, heads, dim]`, changed in place.
    float *heads_data;
    const int32_t *positions;
    HotseamRopeTables rope;
    unsigned rows;
    unsigned heads;
    unsigned dim;
    float eps;
    // 1: each head is RMS-normed before, without a weight. 0: only turned.
    unsigned norm;
    // 1: turned back.
    unsigned inverse;
};

// Norm and rope of heads, a warp each. Rows whose position is not in the tables are left alone. Products and sums of the
// rotation are rounded one by one, as the host's are.
KERNEL_BOUNDED(hotseam_ops_heads, HeadsParams, 256) {
    long long head = (long long)blockIdx.x * (blockDim.x / 32) + warp_id();
    if (head >= (long long)p.rows * p.heads) return;
    int position = p.positions[head / p.heads];
    if (position < 0 || position >= p.rope.cos.shape[0]) return;
    float *x = p.heads_data + head * p.dim;
    unsigned pairs = p.rope.cos.shape[1], plain = p.dim - 2 * pairs;
    float scale = 1.0f;
    if (p.norm) {
        float sum = 0.0f;
        for (unsigned i = lane_id(); i < p.dim; i += 32) sum = fmaf(x[i], x[i], sum);
        scale = 1.0f / sqrtf(warp_sum(sum) / p.dim + p.eps);
        for (unsigned i = lane_id(); i < plain; i += 32) x[i] *= scale;
    }
    const float *cos = (const float *)p.rope.cos.data + (long long)position * pairs;
    const float *sin = (const float *)p.rope.sin.data + (long long)position * pairs;
    for (unsigned i = lane_id(); i < pairs; i += 32) {
        float a = x[plain + 2 * i] * scale, b = x[plain + 2 * i + 1] * scale;
        float c = cos[i], s = p.inverse ? -sin[i] : sin[i];
        x[plain + 2 * i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
        x[plain + 2 * i + 1] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    }
}

// Matrices that one launch multiplies with the same `x`.
#define PARTS_MOST 6

struct LinearPart {
    // `[groups * n, k]`.
    HotseamWeightRef w;
    // `[rows, groups, n]`.
    float *y;
    // Outputs of a group.
    unsigned n;
    // First block of the grid, in x, that is this part's.
    unsigned first_block;
};

struct LinearParams {
    // `[rows, groups, k]`.
    const float *x;
    unsigned rows;
    unsigned groups;
    unsigned k;
    unsigned parts;
    LinearPart part[PARTS_MOST];
};

// The part that block `block` of the outputs belongs to.
DEVICE const LinearPart &linear_part(const LinearParams &p, unsigned block) {
    unsigned i = 0;
    while (i + 1 < p.parts && block >= p.part[i + 1].first_block) i++;
    return p.part[i];
}

DEVICE const float *linear_input(const LinearParams &p, long long row) {
    return row < p.rows ? p.x + (row * p.groups + blockIdx.z) * p.k : nullptr;
}

DEVICE float *linear_output(const LinearParams &p, const LinearPart &part, long long row) {
    return part.y + (row * p.groups + blockIdx.z) * part.n;
}

DEVICE WeightRow linear_weights(const LinearParams &p, const LinearPart &part, unsigned o) {
    return o < part.n ? weight_row(part.w, (long long)blockIdx.z * part.n + o, p.k) : no_weights();
}

// Grid: two outputs a warp, eight rows, groups.
KERNEL_BOUNDED(hotseam_ops_linear_few, LinearParams, 256) {
    SHARED float4 shared[FEW_SHARED(FEW_ROWS_MOST) / 4];
    const LinearPart &part = linear_part(p, blockIdx.x);
    long long first = (long long)blockIdx.y * FEW_ROWS_MOST;
    unsigned o = ((blockIdx.x - part.first_block) * (blockDim.x / 32) + warp_id()) * 2;
    WeightRow w[2] = {linear_weights(p, part, o), linear_weights(p, part, o + 1)};
    few_outputs(
        min((int)(p.rows - first), FEW_ROWS_MOST), [&](int r) { return linear_input(p, first + r); }, w, p.k, (float *)shared,
        [&](int r, float one, float two) {
            float *y = linear_output(p, part, first + r);
            if (o < part.n) y[o] = one;
            if (o + 1 < part.n) y[o + 1] = two;
        }
    );
}

template <int TILES> DEVICE void linear_stream(const LinearParams &p, unsigned char *memory, const float **rows) {
    unsigned row_blocks = (p.rows + STREAM_ROWS - 1) / STREAM_ROWS, block = blockIdx.x / row_blocks;
    const LinearPart &part = linear_part(p, block);
    unsigned first = blockIdx.x % row_blocks * STREAM_ROWS, output = (block - part.first_block) * (TILES * STREAM_OUTPUTS);
    if (threadIdx.x < STREAM_ROWS) rows[threadIdx.x] = linear_input(p, first + threadIdx.x);
    __syncthreads();
    StreamRows w[1] = {stream_rows(linear_weights(p, part, output), (long long)part.n - output)};
    stream_products<TILES, true>(
        part.w.format, w, rows, min(p.rows - first, STREAM_ROWS + 0u), p.k, memory,
        [&](int r, int o, const float (&values)[TILES]) {
            float *y = linear_output(p, part, first + r);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                unsigned at = output + m * STREAM_OUTPUTS + o;
                if (at < part.n) y[at] = values[m];
            }
        }
    );
}

// Grid: tiles of outputs, of which those of the same weights and other rows follow each other; 1; groups.
#define LINEAR_STREAM(name, tiles)                              \
    KERNEL_EARLY(name, LinearParams, STREAM_THREADS) {          \
        SHARED uint4 memory[STREAM_SHARED / 16];                \
        SHARED const float *rows[STREAM_ROWS];                  \
        linear_stream<tiles>(p, (unsigned char *)memory, rows); \
    }

LINEAR_STREAM(hotseam_ops_linear_stream1, 1)
LINEAR_STREAM(hotseam_ops_linear_stream2, 2)
LINEAR_STREAM(hotseam_ops_linear_stream4, 4)

// Grid: tiles of outputs, tiles of rows, groups.
KERNEL_BOUNDED(hotseam_ops_linear_many, LinearParams, TILE_THREADS) {
    SHARED float4 shared[TILE_SHARED / 4];
    const LinearPart &part = linear_part(p, blockIdx.x);
    long long row = (long long)blockIdx.y * TILE;
    unsigned output = (blockIdx.x - part.first_block) * TILE;
    many_rows(
        part.w.format != HOTSEAM_WEIGHT_FORMAT_F32, [&](int r) { return linear_input(p, row + r); },
        [&](int o) { return linear_weights(p, part, output + o); }, p.k, (float *)shared,
        [&](int r, int o, float one, float two) {
            if (row + r >= p.rows) return;
            float *y = linear_output(p, part, row + r) + output + o;
            if (output + o < part.n) y[0] = one;
            if (output + o + 1 < part.n) y[1] = two;
        }
    );
}

struct SwigluParams {
    // `[n]`; the result goes to `up`.
    const float *gate;
    float *up;
    unsigned long long n;
    float limit;
};

KERNEL_BOUNDED(hotseam_ops_swiglu, SwigluParams, 256) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.up[i] = swiglu(p.gate[i], p.up[i], p.limit);
}

struct AddParams {
    // `[n]`: `y += x`.
    const float *x;
    float *y;
    unsigned long long n;
};

KERNEL_BOUNDED(hotseam_ops_add, AddParams, 256) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.y[i] += p.x[i];
}

struct LocalExpertsParams {
    // `[n]` numbers of experts among all ranks, or -1.
    const int32_t *ids;
    // `[n]` numbers among this rank's `count`, which begin at `first`; -1 for those of others.
    int32_t *out;
    unsigned long long n;
    int32_t first;
    int32_t count;
};

KERNEL_BOUNDED(hotseam_ops_local_experts, LocalExpertsParams, 256) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    int32_t id = p.ids[i];
    bool own = id >= p.first && id - p.first < p.count;
    p.out[i] = own ? id - p.first : -1;
}

struct GatherParams {
    // `[rows, width]`.
    const float *x;
    // Row of `x` for each row of `out`; one that is not there gives zeros.
    const int32_t *rows;
    float *out;
    unsigned x_rows;
    unsigned width;
};

// Grid: slices of 256 values, rows of `out`.
KERNEL_BOUNDED(hotseam_ops_gather, GatherParams, 256) {
    unsigned d = blockIdx.x * blockDim.x + threadIdx.x;
    if (d >= p.width) return;
    int row = p.rows[blockIdx.y];
    bool known = row >= 0 && (unsigned)row < p.x_rows;
    p.out[(long long)blockIdx.y * p.width + d] = known ? p.x[(long long)row * p.width + d] : 0.0f;
}

// Grid: rows.
KERNEL_BOUNDED(hotseam_ops_sample, SampleParams, SAMPLE_THREADS) {
    SHARED SampleShared shared;
    sample_row(p, shared);
}

struct CountParams {
    unsigned long long *counter;
};

// One more run of what this stands behind.
KERNEL_BOUNDED(hotseam_ops_count, CountParams, 32) {
    if (threadIdx.x == 0) *p.counter += 1;
}

struct SplitParams {
    const float *x;
    // Three times `[n]` bf16, `pitch` apart, the largest part of each value first.
    unsigned short *parts;
    long long n, pitch;
};

// A value as the sum of three bf16, which hold 8 bits of it each. Grid: 16 values a thread.
KERNEL_BOUNDED(hotseam_ops_split, SplitParams, 256) {
    long long first = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    if (first >= p.n) return;
    float v[16];
    inputs_of(p.x, first, p.n, v);
#pragma unroll
    for (int part = 0; part < 3; part++) {
        unsigned short *to = p.parts + part * p.pitch + first;
        bool whole = first + 16 <= p.n && ((size_t)to & 15) == 0;
        if (whole) {
            store_bf16((unsigned *)to, v);
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (first + i < p.n) to[i] = (unsigned short)(__float_as_uint(v[i]) >> 16);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] -= __uint_as_float(__float_as_uint(v[i]) & 0xffff0000u);
    }
}

struct NarrowParams {
    HotseamWeightRef w;
    // `[n, k]` bf16.
    unsigned short *out;
    long long n, k;
};

// Weights that are bf16 without rounding, as such. Grid: outputs, 16 inputs a thread.
KERNEL_BOUNDED(hotseam_ops_narrow, NarrowParams, 256) {
    long long col = ((long long)blockIdx.y * blockDim.x + threadIdx.x) * 16, row = blockIdx.x;
    if (col >= p.k || row >= p.n) return;
    float v[16];
    weight_values(weight_row(p.w, row, p.k), col, p.k, v);
    unsigned short *to = p.out + row * p.k + col;
    if (col + 16 <= p.k && ((size_t)to & 15) == 0) {
        store_bf16((unsigned *)to, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (col + i < p.k) to[i] = (unsigned short)(__float_as_uint(v[i]) >> 16);
    }
}
