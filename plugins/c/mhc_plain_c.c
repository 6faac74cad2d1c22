/* The variant `mhc/plain-c`: hyper-connections in plain C, against the generated header of the contract.
 *
 *   cc -std=c11 -O3 -shared -fPIC -I abi/contract/include -o libhotseam_mhc_plain_c.so plugins/c/mhc_plain_c.c -lm
 *
 * Rows are shared out by the host's parallel loop; a call allocates nothing. */
#include <hotseam/plugin.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Most streams; what a row needs is on the stack. */
enum { STREAMS = 16 };

static int32_t refuse(const HotseamHostServicesV1 *host, const char *text) {
    HotseamText message = {(const uint8_t *)text, strlen(text)};
    host->error(host->ctx, message);
    return HOTSEAM_ERR_ARGUMENT;
}

/* Whether `t` is f32 on the CPU, contiguous, and of this shape. */
static int is(const HotseamTensorRef *t, uint32_t ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t shape[3] = {a, b, c};
    int64_t stride = 1;
    if (!t->data || t->dtype != HOTSEAM_DTYPE_F32 || t->device != HOTSEAM_DEVICE_CPU || t->ndim != ndim) return 0;
    for (uint32_t d = ndim; d-- > 0;) {
        if (t->shape[d] != shape[d] || (shape[d] > 1 && t->strides[d] != stride)) return 0;
        stride *= shape[d];
    }
    return 1;
}

/* Eight sums that the compiler may keep in one vector. */
static float dot(const float *a, const float *b, int64_t n) {
    float sums[8] = {0}, total = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++) sums[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++) total += a[i] * b[i];
    for (int lane = 0; lane < 8; lane++) total += sums[lane];
    return total;
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* Streams of a row, and the number that brings their mean square to 1. */
typedef struct { const float *flat; float inverse_rms; int64_t n; } Row;

static Row row_of(const HotseamTensorRef *streams, size_t row, float eps) {
    int64_t n = streams->shape[1] * streams->shape[2];
    const float *flat = (const float *)streams->data + (int64_t)row * n;
    return (Row){flat, 1 / sqrtf(dot(flat, flat, n) / (float)n + eps), n};
}

static float mixed(Row row, const HotseamTensorRef *fn_weight, int64_t output) {
    return dot((const float *)fn_weight->data + output * row.n, row.flat, row.n) * row.inverse_rms;
}

/* x = sum_i gate_i streams_i */
static void collapse(Row row, const float *gates, int64_t hc, float *x) {
    int64_t hidden = row.n / hc;
    memset(x, 0, (size_t)hidden * sizeof *x);
    for (int64_t i = 0; i < hc; i++)
        for (int64_t d = 0; d < hidden; d++) x[d] += gates[i] * row.flat[i * hidden + d];
}

static void normalise(float *comb, int64_t hc, int64_t stride, int64_t step, float eps) {
    for (int64_t line = 0; line < hc; line++) {
        float sum = eps;
        for (int64_t i = 0; i < hc; i++) sum += comb[line * step + i * stride];
        for (int64_t i = 0; i < hc; i++) comb[line * step + i * stride] /= sum;
    }
}

static void pre_rows(void *data, size_t begin, size_t end) {
    const HotseamMhcPreArgs *a = data;
    const int64_t hc = a->streams.shape[1];
    const float *base = a->base.data, *scale = a->scale.data;
    for (size_t r = begin; r < end; r++) {
        if (a->batch->positions[r] < 0) continue;
        Row row = row_of(&a->streams, r, a->norm_eps);
        float gates[STREAMS];
        float *post = (float *)a->post.data + (int64_t)r * hc, *comb = (float *)a->comb.data + (int64_t)r * hc * hc;
        for (int64_t i = 0; i < hc; i++) {
            gates[i] = sigmoid(mixed(row, &a->fn_weight, i) * scale[0] + base[i]) + a->hc_eps;
            post[i] = 2 * sigmoid(mixed(row, &a->fn_weight, hc + i) * scale[1] + base[hc + i]);
            float *line = comb + i * hc, largest = -INFINITY, sum = 0;
            for (int64_t k = 0; k < hc; k++) {
                int64_t output = (2 + i) * hc + k;
                line[k] = mixed(row, &a->fn_weight, output) * scale[2] + base[output];
                largest = fmaxf(largest, line[k]);
            }
            for (int64_t k = 0; k < hc; k++) sum += line[k] = expf(line[k] - largest);
            for (int64_t k = 0; k < hc; k++) line[k] = line[k] / sum + a->hc_eps;
        }
        normalise(comb, hc, hc, 1, a->hc_eps);
        for (uint32_t i = 1; i < a->iters; i++) {
            normalise(comb, hc, 1, hc, a->hc_eps);
            normalise(comb, hc, hc, 1, a->hc_eps);
        }
        collapse(row, gates, hc, (float *)a->x.data + (int64_t)r * (row.n / hc));
    }
}

static int32_t pre(void *self, const HotseamStepCtx *ctx, const HotseamMhcPreArgs *a) {
    (void)self;
    const int64_t n = a->batch->n_rows, hc = a->streams.shape[1], hidden = a->streams.shape[2];
    if (n == 0) return HOTSEAM_OK;
    if (hc < 1 || hc > STREAMS) return refuse(ctx->host, "mhc.pre: expected 1 to 16 streams");
    if (!is(&a->streams, 3, n, hc, hidden) || !is(&a->fn_weight, 2, (2 + hc) * hc, hc * hidden, 0)
        || !is(&a->base, 1, (2 + hc) * hc, 0, 0) || !is(&a->scale, 1, 3, 0, 0) || !is(&a->x, 2, n, hidden, 0)
        || !is(&a->post, 2, n, hc, 0) || !is(&a->comb, 3, n, hc, hc))
        return refuse(ctx->host, "mhc.pre: expected contiguous f32 tensors of the contract's shapes");
    ctx->host->parallel_for(ctx->host->ctx, (size_t)n, 1, (void *)a, pre_rows);
    return HOTSEAM_OK;
}

static void post_rows(void *data, size_t begin, size_t end) {
    const HotseamMhcPostArgs *a = data;
    const int64_t hc = a->streams.shape[1], hidden = a->streams.shape[2];
    for (size_t r = begin; r < end; r++) {
        if (a->batch->positions[r] < 0) continue;
        const float *from = (const float *)a->streams.data + (int64_t)r * hc * hidden;
        const float *f = (const float *)a->f.data + (int64_t)r * hidden;
        const float *post = (const float *)a->post.data + (int64_t)r * hc;
        const float *comb = (const float *)a->comb.data + (int64_t)r * hc * hc;
        float *to = (float *)a->out.data + (int64_t)r * hc * hidden;
        for (int64_t d = 0; d < hidden; d++) {
            float old[STREAMS]; /* `to` may be `from` */
            for (int64_t i = 0; i < hc; i++) old[i] = from[i * hidden + d];
            for (int64_t k = 0; k < hc; k++) {
                float sum = post[k] * f[d];
                for (int64_t i = 0; i < hc; i++) sum += comb[i * hc + k] * old[i];
                to[k * hidden + d] = sum;
            }
        }
    }
}

static int32_t post(void *self, const HotseamStepCtx *ctx, const HotseamMhcPostArgs *a) {
    (void)self;
    const int64_t n = a->batch->n_rows, hc = a->streams.shape[1], hidden = a->streams.shape[2];
    if (n == 0) return HOTSEAM_OK;
    if (hc < 1 || hc > STREAMS) return refuse(ctx->host, "mhc.post: expected 1 to 16 streams");
    if (!is(&a->streams, 3, n, hc, hidden) || !is(&a->f, 2, n, hidden, 0) || !is(&a->post, 2, n, hc, 0)
        || !is(&a->comb, 3, n, hc, hc) || !is(&a->out, 3, n, hc, hidden))
        return refuse(ctx->host, "mhc.post: expected contiguous f32 tensors of the contract's shapes");
    ctx->host->parallel_for(ctx->host->ctx, (size_t)n, 1, (void *)a, post_rows);
    return HOTSEAM_OK;
}

static void head_rows(void *data, size_t begin, size_t end) {
    const HotseamMhcHeadArgs *a = data;
    const int64_t hc = a->streams.shape[1];
    const float *base = a->base.data, *scale = a->scale.data;
    for (size_t r = begin; r < end; r++) {
        if (a->batch->positions[r] < 0) continue;
        Row row = row_of(&a->streams, r, a->norm_eps);
        float gates[STREAMS];
        for (int64_t i = 0; i < hc; i++)
            gates[i] = sigmoid(mixed(row, &a->fn_weight, i) * scale[0] + base[i]) + a->hc_eps;
        collapse(row, gates, hc, (float *)a->x.data + (int64_t)r * (row.n / hc));
    }
}

static int32_t head(void *self, const HotseamStepCtx *ctx, const HotseamMhcHeadArgs *a) {
    (void)self;
    const int64_t n = a->batch->n_rows, hc = a->streams.shape[1], hidden = a->streams.shape[2];
    if (n == 0) return HOTSEAM_OK;
    if (hc < 1 || hc > STREAMS) return refuse(ctx->host, "mhc.head: expected 1 to 16 streams");
    if (!is(&a->streams, 3, n, hc, hidden) || !is(&a->fn_weight, 2, hc, hc * hidden, 0) || !is(&a->base, 1, hc, 0, 0)
        || !is(&a->scale, 1, 1, 0, 0) || !is(&a->x, 2, n, hidden, 0))
        return refuse(ctx->host, "mhc.head: expected contiguous f32 tensors of the contract's shapes");
    ctx->host->parallel_for(ctx->host->ctx, (size_t)n, 1, (void *)a, head_rows);
    return HOTSEAM_OK;
}

static int32_t probe(const HotseamHostServicesV1 *host) {
    (void)host;
    return HOTSEAM_OK;
}

/* There are no options and no state; an instance is a byte of its own, so that instances have addresses. */
static int32_t create(const HotseamHostServicesV1 *host, HotseamText options, void **out) {
    (void)host, (void)options;
    *out = malloc(1);
    return *out ? HOTSEAM_OK : HOTSEAM_ERR_INTERNAL;
}

static int32_t info(void *self, HotseamInfoV1 *info) {
    (void)self;
    info->capabilities = 0;
    info->phases = 1u << HOTSEAM_PHASE_PREFILL | 1u << HOTSEAM_PHASE_DECODE | 1u << HOTSEAM_PHASE_VERIFY;
    info->layout = 0;
    info->data_bytes = 0;
    info->scale_bytes = 0;
    return HOTSEAM_OK;
}

static void destroy(void *self) { free(self); }

static const HotseamMhcV1 mhc = {.pre = pre, .post = post, .head = head};

static const char manifest[] =
    "{\"name\": \"mhc/plain-c\", \"version\": \"0.1.0\", \"description\": \"Hyper-connections in plain C\", "
    "\"base\": null, \"options\": {}, \"requires\": {\"cpu\": []}}";

const HotseamPluginV1 *hotseam_plugin_v1(void) {
    static const HotseamPluginV1 plugin = {
        .size = sizeof(HotseamPluginV1),
        .contract = HOTSEAM_CONTRACT,
        .seam = HOTSEAM_SEAM_MHC,
        .host_services = 1,
        .manifest = {(const uint8_t *)manifest, sizeof manifest - 1},
        .probe = probe,
        .create = create,
        .info = info,
        .destroy = destroy,
        .mhc = &mhc,
    };
    return &plugin;
}
