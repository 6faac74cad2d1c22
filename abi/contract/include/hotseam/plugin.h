/* The plugin contract of Hotseam in C: generated from abi/contract/src by its tests, and checked by them. Do not
 * edit. */
#ifndef HOTSEAM_PLUGIN_H
#define HOTSEAM_PLUGIN_H

#include "args.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Seams, numbered. */
/** Attention backend. */
#define HOTSEAM_SEAM_ATTENTION 0u
/** C4 indexer. */
#define HOTSEAM_SEAM_INDEXER 1u
/** Mixture of experts. */
#define HOTSEAM_SEAM_MOE 2u
/** Manifold-constrained hyper-connections. */
#define HOTSEAM_SEAM_MHC 3u
/** Prefill-to-decode KV transport. */
#define HOTSEAM_SEAM_KV_TRANSPORT 4u

/** What an instance takes over from the host; bits of `InfoV1::capabilities`. The host skips exactly these. */
/** `attention.core` also applies the inverse rope to its output. */
#define HOTSEAM_CAPABILITY_FUSES_INVERSE_ROPE ((uint64_t)1 << 0)
/** `mhc.pre` also applies the RMS norm that follows it. */
#define HOTSEAM_CAPABILITY_NORM_FUSED ((uint64_t)1 << 1)
/** `moe.route` multiplies the weights by `routed_scale` in hash-routed layers. */
#define HOTSEAM_CAPABILITY_ROUTE_SCALES_HASH ((uint64_t)1 << 2)
/** `moe.route` multiplies the weights by `routed_scale` in top-k layers. */
#define HOTSEAM_CAPABILITY_ROUTE_SCALES_TOPK ((uint64_t)1 << 3)

/** Log levels of `HostServicesV1::log`. */
/** Something failed. */
#define HOTSEAM_LOG_LEVEL_ERROR 1u
/** Something is odd. */
#define HOTSEAM_LOG_LEVEL_WARN 2u
/** Something happened. */
#define HOTSEAM_LOG_LEVEL_INFO 3u
/** Detail for authors. */
#define HOTSEAM_LOG_LEVEL_DEBUG 4u

/** Body of a parallel loop: handles indices `begin .. end`. Must not unwind. */
typedef void (*HotseamParallelBody)(void *data, size_t begin, size_t end);

/** Services that the host gives to every plugin. Frozen for V1: a plugin must not read past `size`. */
struct HotseamHostServicesV1 {
    /** Bytes of this struct. */
    uint32_t size;
    /** Version of the services, 1. */
    uint32_t version;
    /** Threads that `parallel_for` uses, the caller included. */
    uint32_t threads;
    /** Passed back as the first argument of each service. */
    void *ctx;
    /** Writes a log line. Any thread. */
    void (*log)(void *ctx, uint32_t level, HotseamText target, HotseamText message);
    /** Sets the error text of the call that is running on this thread. */
    void (*error)(void *ctx, HotseamText message);
    /** Runs `body` over `0 .. n` in pieces of at least `grain`, on all threads, and waits. Not re-entrant. */
    void (*parallel_for)(void *ctx, size_t n, size_t grain, void *data, HotseamParallelBody body);
};

/** What an instance says of itself after `create`. */
struct HotseamInfoV1 {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Bits of `capability`. */
    uint64_t capabilities;
    /** Bits of the phases served (`1 << phase`); a cell of another phase is refused. */
    uint32_t phases;
    /** Layout of the entries this instance writes and reads (`layout`); 0 for seams without a pool. */
    uint32_t layout;
    /** Dimension the question is asked for (`head_dim` or `index_head_dim`); set by the host. */
    uint32_t dim;
    /** Roped values of an entry (`qk_rope_head_dim`), the last ones; set by the host. */
    uint32_t rope_dim;
    /** Bytes of the data part of an entry of `layout` (`PoolRef`); set by the plugin, 0 for seams without a pool. */
    uint32_t data_bytes;
    /** Bytes of its scale part; set by the plugin. */
    uint32_t scale_bytes;
};

/** Functions of the `attention` seam; a null function falls to the variant's base. */
struct HotseamAttentionV1 {
    /** See `StoreArgs`. */
    int32_t (*store)(void *self, const HotseamStepCtx *ctx, const HotseamStoreArgs *args);
    /** See `CompressArgs`. */
    int32_t (*compress)(void *self, const HotseamStepCtx *ctx, const HotseamCompressArgs *args);
    /** See `CoreArgs`. */
    int32_t (*core)(void *self, const HotseamStepCtx *ctx, const HotseamCoreArgs *args);
};

/** Functions of the `indexer` seam. */
struct HotseamIndexerV1 {
    /** See `CompressArgs`. */
    int32_t (*compress)(void *self, const HotseamStepCtx *ctx, const HotseamCompressArgs *args);
    /** See `SelectArgs`. */
    int32_t (*select)(void *self, const HotseamStepCtx *ctx, const HotseamSelectArgs *args);
};

/** Functions of the `moe` seam. */
struct HotseamMoeV1 {
    /** See `RouteArgs`. */
    int32_t (*route)(void *self, const HotseamStepCtx *ctx, const HotseamRouteArgs *args);
    /** See `ExpertsArgs`. */
    int32_t (*experts)(void *self, const HotseamStepCtx *ctx, const HotseamExpertsArgs *args);
};

/** Functions of the `mhc` seam. */
struct HotseamMhcV1 {
    /** See `MhcPreArgs`. */
    int32_t (*pre)(void *self, const HotseamStepCtx *ctx, const HotseamMhcPreArgs *args);
    /** See `MhcPostArgs`. */
    int32_t (*post)(void *self, const HotseamStepCtx *ctx, const HotseamMhcPostArgs *args);
    /** See `MhcHeadArgs`. */
    int32_t (*head)(void *self, const HotseamStepCtx *ctx, const HotseamMhcHeadArgs *args);
};

/** Functions of the `kv_transport` seam. They run on one host thread; `put` must not wait for completion. The last four come
 *  together: a transport that lacks them has both sides in one process. */
struct HotseamKvTransportV1 {
    /** See `RegisterArgs`. */
    int32_t (*register_)(void *self, const HotseamStepCtx *ctx, const HotseamRegisterArgs *args);
    /** See `PutArgs`. */
    int32_t (*put)(void *self, const HotseamStepCtx *ctx, const HotseamPutArgs *args);
    /** See `PollArgs`. */
    int32_t (*poll)(void *self, const HotseamStepCtx *ctx, HotseamPollArgs *args);
    /** Gives a ticket up: after it returns the source is not read and the destination is not written any more, as far as they
     *  are registered here; a destination elsewhere is closed there. Unknown tickets are fine. */
    int32_t (*cancel)(void *self, const HotseamStepCtx *ctx, uint64_t ticket);
    /** See `EndpointArgs`. */
    int32_t (*endpoint)(void *self, const HotseamStepCtx *ctx, HotseamEndpointArgs *args);
    /** See `ConnectArgs`. */
    int32_t (*connect)(void *self, const HotseamStepCtx *ctx, HotseamConnectArgs *args);
    /** See `AcceptArgs`. */
    int32_t (*accept)(void *self, const HotseamStepCtx *ctx, const HotseamAcceptArgs *args);
    /** See `CloseArgs`. */
    int32_t (*close)(void *self, const HotseamStepCtx *ctx, HotseamCloseArgs *args);
};

/** Everything a plugin hands to the host. Static for the life of the process. */
struct HotseamPluginV1 {
    /** Bytes of this struct. */
    uint32_t size;
    /** `CONTRACT` of the build. */
    uint32_t contract;
    /** One of `seam`. */
    uint32_t seam;
    /** Version of `HostServicesV1` the plugin needs. */
    uint32_t host_services;
    /** JSON manifest: `name` (`seam/variant`), `version`, `description`, `base` (variant that serves the ops this one
     *  leaves null, or null), `device` (`cpu` or `cuda`: where its ops run), `options` (`{name: {type, default, values?,
     *  help}}`), `requires` (`{cpu: [features], libs: [names], cuda: {driver_min, sm: [capabilities]}}`, all optional),
     *  `panic` (panic strategy of the build). */
    HotseamText manifest;
    /** Whether the plugin can run on this machine: `OK`, or a code with the reason given to
     *  `HostServicesV1::error`. Worker thread; may be slow. */
    int32_t (*probe)(const HotseamHostServicesV1 *host);
    /** Makes an instance from a JSON object of options (each one known to the manifest). Worker thread; may allocate. */
    int32_t (*create)(const HotseamHostServicesV1 *host, HotseamText options, void **out);
    /** Describes an instance. Any thread. */
    int32_t (*info)(void *self, HotseamInfoV1 *info);
    /** Ends an instance. Never called while a call on it runs; the code stays mapped. */
    void (*destroy)(void *self);
    /** Set if `seam` is attention. */
    const HotseamAttentionV1 *attention;
    /** Set if `seam` is indexer. */
    const HotseamIndexerV1 *indexer;
    /** Set if `seam` is moe. */
    const HotseamMoeV1 *moe;
    /** Set if `seam` is mhc. */
    const HotseamMhcV1 *mhc;
    /** Set if `seam` is kv_transport. */
    const HotseamKvTransportV1 *kv_transport;
};

/** The symbol that a plugin in C or C++ exports. What it returns lives as long as the process. */
const HotseamPluginV1 *hotseam_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#include "layout.h"

#endif
