// Modules, their functions, and launches.
//
// An image is a real cubin, made for a real device: it says by its symbols which kernels it holds, and the emulator runs what
// g++ made of the same source.
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "runtime.hpp"

using namespace hotseam_emulated;

using CUmodule = void *;
using CUfunction = void *;
using CUstream = void *;

namespace hotseam_emulated {

namespace {

std::vector<Kernel> &table() {
    static std::vector<Kernel> kernels;
    return kernels;
}

struct Function {
    const Kernel *kernel;
    const void *module;
    unsigned most_dynamic = 48 << 10;
};

struct Module {
    std::string image;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

std::mutex mutex;
std::set<Module *> modules;
std::set<const void *> functions;

// A name stands in the image's table of symbols between two zero bytes.
bool has_symbol(const Module &module, const char *name) {
    std::string wanted(1, '\0');
    wanted += name;
    wanted += '\0';
    return module.image.find(wanted) != std::string::npos;
}

// Kernels of the same name may stand in several sources: the one is meant all of whose kernels the image has.
CUresult find(const Module &module, const char *name, const Kernel **out) {
    if (!has_symbol(module, name)) return CUDA_ERROR_NOT_FOUND;
    std::vector<const Kernel *> all, whole;
    for (const Kernel &kernel : table()) {
        if (kernel.checked != settings().strict || strcmp(kernel.name, name) != 0) continue;
        all.push_back(&kernel);
        bool every = true;
        for (const Kernel &other : table()) every = every && (other.unit != kernel.unit || has_symbol(module, other.name));
        if (every) whole.push_back(&kernel);
    }
    if (all.empty()) {
        say("the image has the kernel %s, but no source of it was compiled into the emulator", name);
        return CUDA_ERROR_NOT_FOUND;
    }
    if (all.size() > 1 && whole.size() != 1) {
        say("several sources have a kernel %s, and the image does not tell which is meant", name);
        return CUDA_ERROR_NOT_FOUND;
    }
    *out = all.size() == 1 ? all[0] : whole[0];
    return CUDA_SUCCESS;
}

constexpr unsigned EM_OF_CUDA = 190;

// The number of the architecture stands in the second byte of the flags since ABI version 8, before that in the first.
CUresult load(const void *image, Module **out) {
    Elf64_Ehdr header;
    memcpy(&header, image, SELFMAG);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        say("the image is no ELF file: only cubins are loaded, no PTX and no fat binary");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    memcpy(&header, image, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_OF_CUDA) {
        say("the image is an ELF file of machine %u, no cubin (%u)", header.e_machine, EM_OF_CUDA);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    int sm = int(header.e_ident[EI_ABIVERSION] >= 8 ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff);
    if (sm != settings().sm) {
        say("the image is for sm_%d, the device is sm_%d", sm, settings().sm);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    // Nothing says how long an image is but its own tables.
    const char *bytes = static_cast<const char *>(image);
    uint64_t end = std::max(header.e_shoff + uint64_t(header.e_shnum) * header.e_shentsize,
                            header.e_phoff + uint64_t(header.e_phnum) * header.e_phentsize);
    for (unsigned i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        memcpy(&section, bytes + header.e_shoff + uint64_t(i) * header.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
    }
    auto module = std::make_unique<Module>();
    module->image.assign(bytes, end);
    std::lock_guard<std::mutex> lock(mutex);
    *out = module.release();
    modules.insert(*out);
    return CUDA_SUCCESS;
}

}   // namespace

Enlist::Enlist(const Kernel &kernel) { table().push_back(kernel); }

const std::vector<Kernel> &kernels() { return table(); }

bool valid_function(const void *function) {
    std::lock_guard<std::mutex> lock(mutex);
    return functions.count(function) != 0;
}

CUresult node_of_launch(void *handle, dim3 grid, dim3 block, unsigned shared, void **params, void **extra, Node *node) {
    if (!valid_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
    const Function &function = *static_cast<const Function *>(handle);
    const Kernel &kernel = *function.kernel;
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0 || threads > MOST_THREADS || block.z > 64 ||
        grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
        say("kernel %s: a grid of %ux%ux%u blocks of %ux%ux%u threads is no launch", kernel.name, grid.x, grid.y, grid.z, block.x,
            block.y, block.z);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads > kernel.threads) {
        say("kernel %s: %llu threads a block, but it is bounded to %u", kernel.name, (unsigned long long)threads, kernel.threads);
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    if (shared > function.most_dynamic) {
        say("kernel %s: %u bytes of dynamic shared memory, but its attribute allows %u", kernel.name, shared,
            function.most_dynamic);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const void *from = params ? params[0] : nullptr;
    if (extra) {
        // Pairs of a name and a value: 1 is the buffer of all parameters, 2 its size, 0 ends.
        for (void **at = extra; *at; at += 2) {
            if (*at == reinterpret_cast<void *>(1)) from = at[1];
            if (*at == reinterpret_cast<void *>(2) && *static_cast<size_t *>(at[1]) != kernel.bytes) {
                say("kernel %s: parameters of %zu bytes, but it has %zu", kernel.name, *static_cast<size_t *>(at[1]),
                    kernel.bytes);
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
    }
    if (!from) return CUDA_ERROR_INVALID_VALUE;
    node->type = Node::KernelNode;
    node->function = handle;
    node->launch = {&kernel, grid, block, shared, {}};
    const unsigned char *bytes = static_cast<const unsigned char *>(from);
    node->launch.params.assign(bytes, bytes + kernel.bytes);
    return CUDA_SUCCESS;
}
static void unload(Module *module) {
    // The functions stay, so that a handle is never given a second time; they are no longer valid.
    for (auto &[name, function] : module->functions) functions.erase(function.release());
    delete module;
}

void unload_modules() {
    std::lock_guard<std::mutex> lock(mutex);
    for (Module *module : modules) unload(module);
    modules.clear();
}

}   // namespace hotseam_emulated

#define NEEDS(check)                                                       \
    do {                                                                   \
        if (CUresult result_ = (check); result_ != CUDA_SUCCESS) return result_; \
    } while (0)

EXPORTED CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    NEEDS(usable());
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Module *module;
    NEEDS(load(image, &module));
    *out = module;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, int *, void **) {
    return cuModuleLoadData(out, image);
}

EXPORTED CUresult cuModuleLoad(CUmodule *out, const char *path) {
    NEEDS(usable());
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0) return CUDA_ERROR_FILE_NOT_FOUND;
    void *image = fstat(file, &status) == 0 && size_t(status.st_size) >= sizeof(Elf64_Ehdr)
                      ? mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0)
                      : MAP_FAILED;
    close(file);
    if (image == MAP_FAILED) return CUDA_ERROR_INVALID_IMAGE;
    CUresult result = cuModuleLoadData(out, image);
    munmap(image, size_t(status.st_size));
    return result;
}

EXPORTED CUresult cuModuleUnload(CUmodule handle) {
    NEEDS(usable());
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    std::lock_guard<std::mutex> lock(mutex);
    Module *module = static_cast<Module *>(handle);
    if (modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    unload(module);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    NEEDS(usable());
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    Module *module = static_cast<Module *>(handle);
    if (modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_ptr<Function> &function = module->functions[name];
    if (!function) {
        const Kernel *kernel;
        if (CUresult result = find(*module, name, &kernel); result != CUDA_SUCCESS) {
            module->functions.erase(name);
            return result;
        }
        function = std::make_unique<Function>(Function{kernel, module});
        functions.insert(function.get());
    }
    *out = function.get();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleGetGlobal_v2(unsigned long long *, size_t *, CUmodule, const char *) {
    NEEDS(usable());
    return CUDA_ERROR_NOT_FOUND;
}

// 0 most threads a block, 6 version of the binary, 8 most dynamic shared memory.
EXPORTED CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    NEEDS(usable());
    if (!valid_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != 8) return CUDA_SUCCESS;
    unsigned most = settings().sm == 90 ? MOST_SHARED : settings().sm == 80 ? 166912 : 101376;
    if (value < 0 || unsigned(value) > most) return CUDA_ERROR_INVALID_VALUE;
    static_cast<Function *>(handle)->most_dynamic = unsigned(value);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuFuncLoad(CUfunction handle) {
    NEEDS(usable());
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return valid_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle) {
    NEEDS(usable());
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!valid_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
    const Function &function = *static_cast<const Function *>(handle);
    *value = attribute == 0   ? int(function.kernel->threads)
             : attribute == 6 ? settings().sm
             : attribute == 8 ? int(function.most_dynamic)
                              : 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuFuncSetCacheConfig(CUfunction handle, int) {
    NEEDS(usable());
    return valid_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params,
                                 void **extra) {
    NEEDS(launchable());
    Node node;
    NEEDS(node_of_launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, params, extra, &node));
    return enqueue(stream, std::move(node));
}

EXPORTED CUresult cuLaunchKernelEx(const void *config, CUfunction function, void **params, void **extra) {
    struct Config {
        unsigned grid[3], block[3], shared;
        CUstream stream;
        void *attributes;
        unsigned n_attributes;
    };
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    const Config &c = *static_cast<const Config *>(config);
    return cuLaunchKernel(function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared, c.stream,
                          params, extra);
}
