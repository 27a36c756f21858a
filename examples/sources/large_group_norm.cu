// Group norm of groups of a million f32, written by hand: every element is read once.
//
// kShare thread blocks hold a group together in shared memory: more than a cluster of the hardware may have, so they
// wait for each other by a counter in the workspace, and a cooperative launch makes all of them resident. A ring of
// chunks has the rest of the shared memory: the next group is on its way in while this one is worked on. Whoever
// reads a group again for its second pass moves half as much again.
#include <cstdint>
#include <cuda_runtime.h>

namespace large_group_norm {
namespace {

constexpr int kShare = 32;     // thread blocks that share a group
constexpr int kThreads = 256;
constexpr int kChunk = 4096;   // elements that one bulk copy moves, all of one channel
constexpr int kRing = 13;      // chunks in shared memory
constexpr int kGroups = 8;     // of a sample
constexpr int kWarps = kThreads / 32;
constexpr int kVectors = kChunk / 4 / kThreads;
static_assert(kChunk % (4 * kThreads) == 0 && kShare == 32);

/// The mean of some elements, and their squares about it. Merged are always equal counts.
struct alignas(8) Moments {
  float mean, squares;
};

struct Params {
  float const* x;
  float const* gain;
  float const* shift;
  float* y;
  Moments* moments;  // of each part of each group
  int* counters;     // parts of each group whose moments are there
  int64_t groups;
  int group_elements, plane;  // the latter of a channel
  int chunks, channels;       // of a part; of a group
};

struct Shared {
  alignas(128) float ring[kRing][kChunk];
  Moments warps[kWarps], whole;
  alignas(8) uint64_t loaded[kRing];
};

__device__ uint32_t address(void const* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void wait(uint64_t* barrier, uint32_t phase) {
  asm volatile("{\n .reg .pred done;\n"
               "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @!done bra again;\n}"
               :: "r"(address(barrier)), "r"(phase) : "memory");
}

__device__ void load(float* target, float const* source, uint64_t* barrier) {
  constexpr int kBytes = kChunk * 4;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(address(barrier)), "n"(kBytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(address(target)), "l"(source), "n"(kBytes), "r"(address(barrier)) : "memory");
}

__device__ Moments merged(Moments a, Moments b, float count) {
  float const delta = b.mean - a.mean;
  return {0.5f * (a.mean + b.mean), a.squares + b.squares + delta * delta * (0.5f * count)};
}

/// Merges over a warp's lanes, or a part of them; `count` becomes that of all.
template <int kLanes>
__device__ Moments warp_merged(Moments a, float& count) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    Moments const other = {__shfl_xor_sync(~0u, a.mean, distance), __shfl_xor_sync(~0u, a.squares, distance)};
    a = threadIdx.x & distance ? merged(other, a, count) : merged(a, other, count);
    count *= 2.0f;
  }
  return a;
}

/// Moments of the whole group, of those that each thread of kShare blocks has.
__device__ Moments exchanged(Params const& p, Shared& shared, int64_t group, int part, Moments own, float count) {
  int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  own = warp_merged<32>(own, count);
  if (lane == 0) shared.warps[warp] = own;
  __syncthreads();
  if (warp == 0) {
    own = warp_merged<kWarps>(shared.warps[lane % kWarps], count);
    Moments* const parts = p.moments + group * kShare;
    int* const counter = p.counters + group;
    if (lane == 0) {
      __stcg(reinterpret_cast<float2*>(parts + part), make_float2(own.mean, own.squares));
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(counter) : "memory");
    }
    int there;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(counter) : "memory");
    } while (there < kShare);
    __syncwarp();
    float2 const other = __ldcg(reinterpret_cast<float2 const*>(parts + lane));
    own = warp_merged<32>({other.x, other.y}, count);
    if (lane == 0) shared.whole = own;
  }
  __syncthreads();
  return shared.whole;
}

__global__ void __launch_bounds__(kThreads, 1) group_norm(__grid_constant__ Params const p) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  int const thread = threadIdx.x, part = blockIdx.x % kShare;
  int64_t const first = blockIdx.x / kShare, step = gridDim.x / kShare;
  if (first >= p.groups) return;
  int const rounds = int((p.groups - first + step - 1) / step), total = rounds * p.chunks;
  int const begin = part * p.chunks * kChunk;  // of the part, in its group

  // Chunk q of this block: of its group number q / chunks.
  auto const place = [&](int q) { return (first + q / p.chunks * step) * p.group_elements + begin + q % p.chunks * kChunk; };
  auto const fetch = [&](int q) {
    if (q < total) load(shared.ring[q % kRing], p.x + place(q), &shared.loaded[q % kRing]);
  };
  if (thread == 0) {
    for (auto& barrier : shared.loaded) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (thread == 0) {
    for (int q = 0; q < kRing; ++q) fetch(q);
  }

  for (int round = 0; round < rounds; ++round) {
    int64_t const group = first + round * step;
    int const q0 = round * p.chunks;
    Moments own = {0.0f, 0.0f};
    for (int c = 0; c < p.chunks; ++c) {
      int const q = q0 + c;
      wait(&shared.loaded[q % kRing], q / kRing % 2);
      auto const* const vectors = reinterpret_cast<float4 const*>(shared.ring[q % kRing]);
      float4 value[kVectors];
      float sum = 0.0f, squares = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        value[v] = vectors[v * kThreads + thread];
        sum += (value[v].x + value[v].y) + (value[v].z + value[v].w);
      }
      float const mean = sum * (1.0f / (4 * kVectors));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float const x = value[v].x - mean, y = value[v].y - mean, z = value[v].z - mean, w = value[v].w - mean;
        squares += (x * x + y * y) + (z * z + w * w);
      }
      float const delta = mean - own.mean, share = 1.0f / float(c + 1);
      own.mean = c == 0 ? mean : fmaf(delta, share, own.mean);
      own.squares += squares + (c == 0 ? 0.0f : delta * delta * (float(4 * kVectors) * float(c) * share));
    }
    Moments const whole = exchanged(p, shared, group, part, own, float(4 * kVectors * p.chunks));
    float const scale = rsqrtf(whole.squares / float(p.group_elements) + 1e-5f);
    int const channel0 = int(group % kGroups) * p.channels;
    float* const result = p.y + group * p.group_elements + begin;
    for (int c = 0; c < p.chunks; ++c) {
      int const q = q0 + c;
      int const channel = channel0 + (begin + c * kChunk) / p.plane;
      float const gain = __ldg(p.gain + channel) * scale, shift = __ldg(p.shift + channel);
      auto const* const vectors = reinterpret_cast<float4 const*>(shared.ring[q % kRing]);
      auto* const target = reinterpret_cast<float4*>(result + c * kChunk);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float4 x = vectors[v * kThreads + thread];
        x.x = fmaf(x.x - whole.mean, gain, shift);
        x.y = fmaf(x.y - whole.mean, gain, shift);
        x.z = fmaf(x.z - whole.mean, gain, shift);
        x.w = fmaf(x.w - whole.mean, gain, shift);
        target[v * kThreads + thread] = x;
      }
      __syncthreads();  // everybody has read the chunk that the next one overwrites
      if (thread == 0) fetch(q + kRing);
    }
  }
}

int32_t code(cudaError_t error) {
  if (error == cudaSuccess) return 0;
  (void)cudaGetLastError();
  return 1000 + int(error);
}

bool aligned(void const* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace
}  // namespace large_group_norm

extern "C" int32_t ucc_large_group_norm(
    void* const* tensors, int64_t const* e, double const*, int64_t const*,
    void* workspace, uint64_t* workspace_size, void* cuda_stream) {
  using namespace large_group_norm;
  // Extents: B, G, C, H, W.
  Params p = {};
  p.groups = e[0] * e[1];
  p.channels = int(e[2]);
  int64_t const plane = e[3] * e[4], group_elements = e[2] * plane;
  uint64_t const moments = uint64_t(p.groups) * kShare * sizeof(Moments);
  if (workspace_size != nullptr) {
    *workspace_size = moments + uint64_t(p.groups) * sizeof(int);
    return 0;
  }
  int64_t const part = group_elements / kShare;
  if (p.groups < 1 || e[1] != kGroups || plane < 1 || e[2] < 1) return 1;
  if (plane % kChunk != 0 || group_elements % (int64_t(kShare) * kChunk) != 0) return 1;
  if (part > int64_t(kRing) * kChunk || p.groups > (1 << 20) || workspace == nullptr) return 1;
  for (int i = 0; i < 4; ++i) {
    if (!aligned(tensors[i]) && (i == 0 || i == 3)) return 1;
  }
  p.plane = int(plane);
  p.group_elements = int(group_elements);
  p.chunks = int(part / kChunk);
  p.x = static_cast<float const*>(tensors[0]);
  p.gain = static_cast<float const*>(tensors[1]);
  p.shift = static_cast<float const*>(tensors[2]);
  p.y = static_cast<float*>(tensors[3]);
  p.moments = static_cast<Moments*>(workspace);
  p.counters = reinterpret_cast<int*>(static_cast<uint8_t*>(workspace) + moments);

  auto const stream = static_cast<cudaStream_t>(cuda_stream);
  int device = 0, processors = 0;
  if (int32_t const failure = code(cudaGetDevice(&device))) return failure;
  if (int32_t const failure = code(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))) return failure;
  if (int32_t const failure = code(cudaFuncSetAttribute(group_norm, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)))) return failure;
  if (int32_t const failure = code(cudaMemsetAsync(p.counters, 0, size_t(p.groups) * sizeof(int), stream))) return failure;

  int64_t const most = processors / kShare;
  if (most < 1) return 1;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(kShare * (p.groups < most ? p.groups : most)));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return code(cudaLaunchKernelEx(&config, group_norm, p));
}
