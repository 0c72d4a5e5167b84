// The block arena: large device blocks, reserved on demand in a ladder of sizes, and cut into the
// segments that PyTorch's caching allocator asks for. Plain C++17 behind a C ABI; the CUDA driver
// is opened at run time, so g++ alone compiles this. `lf_ray.runtime.memory.policy` is its twin in
// Python: one rule, and tests that run both over the same requests.
//
// Which block: of the blocks with a hole that holds the segment, the smallest block, then the
// smallest hole, then the oldest block and the lowest offset. Without one, a new block of the
// smallest size in the ladder that holds it, within the budget. Else the segment falls back to
// the driver and is counted.

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kGranule = 512;

using ReserveFn = uint64_t (*)(int device, uint64_t num_bytes);
using ReleaseFn = void (*)(int device, uint64_t address);

struct Block {
  uint64_t address = 0;
  uint64_t num_bytes = 0;
  std::map<uint64_t, uint64_t> holes;  // offset -> bytes

  bool empty() const { return holes.size() == 1 && holes.begin()->second == num_bytes; }
  uint64_t used() const {
    uint64_t free_bytes = 0;
    for (const auto& hole : holes) free_bytes += hole.second;
    return num_bytes - free_bytes;
  }
};

struct Lease {
  int64_t block;  // id, or -1 where the driver served it
  uint64_t num_bytes;
};

struct Counts {
  uint64_t requests = 0, request_bytes = 0;
  uint64_t fallbacks = 0, fallback_bytes = 0;
  uint64_t refused = 0;
  uint64_t live_segments = 0, live_bytes = 0, peak_live_bytes = 0;
  uint64_t fallback_live_bytes = 0;
  uint64_t reserved_bytes = 0, peak_reserved_bytes = 0;
  uint64_t blocks_reserved = 0;
};

struct Arena {
  std::mutex mutex;
  bool open = false;
  std::vector<uint64_t> ladder;
  uint64_t budget = 0;
  int64_t next_block = 0;
  std::map<int64_t, Block> blocks;  // by id: the order in which they were reserved
  std::unordered_map<uint64_t, Lease> leases;
  Counts counts;
};

Arena arenas[kMaxDevices];

// ---- the CUDA driver, opened when first needed -------------------------------------------------

struct Driver {
  int (*device_get)(int*, int) = nullptr;
  int (*primary_retain)(void**, int) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*alloc)(unsigned long long*, size_t) = nullptr;
  int (*free)(unsigned long long) = nullptr;
  int (*exchange_mode)(int*) = nullptr;
  void* contexts[kMaxDevices] = {};
  bool ready = false;
};

Driver driver;
std::once_flag driver_once;
std::mutex context_mutex;

template <typename Fn>
bool find(void* library, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(dlsym(library, name));
  return out != nullptr;
}

void open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return;
  int (*init)(unsigned) = nullptr;
  driver.ready = find(library, "cuInit", init) && init(0) == 0 &&
                 find(library, "cuDeviceGet", driver.device_get) &&
                 find(library, "cuDevicePrimaryCtxRetain", driver.primary_retain) &&
                 find(library, "cuCtxPushCurrent_v2", driver.push) &&
                 find(library, "cuCtxPopCurrent_v2", driver.pop) &&
                 find(library, "cuMemAlloc_v2", driver.alloc) &&
                 find(library, "cuMemFree_v2", driver.free) &&
                 find(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_mode);
}

void* context_of(int device) {
  std::lock_guard<std::mutex> lock(context_mutex);
  if (driver.contexts[device] == nullptr) {
    int handle = 0;
    void* context = nullptr;
    if (driver.device_get(&handle, device) == 0 && driver.primary_retain(&context, handle) == 0)
      driver.contexts[device] = context;
  }
  return driver.contexts[device];
}

// Runs with the device's context current, and in relaxed capture mode: while a stream is being
// captured, an allocation is refused in every other mode.
class Scope {
 public:
  explicit Scope(int device) {
    std::call_once(driver_once, open_driver);
    void* context = driver.ready ? context_of(device) : nullptr;
    entered = context != nullptr && driver.push(context) == 0;
    if (entered) driver.exchange_mode(&mode);
  }
  ~Scope() {
    if (!entered) return;
    void* context = nullptr;
    driver.exchange_mode(&mode);
    driver.pop(&context);
  }
  bool entered = false;

 private:
  int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

uint64_t cuda_reserve(int device, uint64_t num_bytes) {
  Scope scope(device);
  unsigned long long address = 0;
  if (!scope.entered || driver.alloc(&address, num_bytes) != 0) return 0;
  return address;
}

void cuda_release(int device, uint64_t address) {
  Scope scope(device);
  if (scope.entered) driver.free(address);
}

ReserveFn reserve_fn = cuda_reserve;
ReleaseFn release_fn = cuda_release;

// ---- the policy --------------------------------------------------------------------------------

struct Place {
  int64_t block = -1;
  uint64_t offset = 0;
  uint64_t block_bytes = 0, hole_bytes = 0;
};

Place best_hole(const Arena& arena, uint64_t num_bytes) {
  Place best;
  for (const auto& [id, block] : arena.blocks) {
    if (block.num_bytes < num_bytes) continue;
    if (best.block >= 0 && block.num_bytes > best.block_bytes) continue;
    for (const auto& [offset, hole_bytes] : block.holes) {
      if (hole_bytes < num_bytes) continue;
      bool better = best.block < 0 || block.num_bytes < best.block_bytes ||
                    (block.num_bytes == best.block_bytes && hole_bytes < best.hole_bytes);
      if (better) best = {id, offset, block.num_bytes, hole_bytes};
    }
  }
  return best;
}

Place new_block(Arena& arena, int device, uint64_t num_bytes) {
  auto size = std::lower_bound(arena.ladder.begin(), arena.ladder.end(), num_bytes);
  if (size == arena.ladder.end()) return {};
  if (arena.counts.reserved_bytes + *size > arena.budget) return {};
  uint64_t address = reserve_fn(device, *size);
  if (address == 0) return {};
  int64_t id = arena.next_block++;
  Block& block = arena.blocks[id];
  block.address = address;
  block.num_bytes = *size;
  block.holes[0] = *size;
  Counts& counts = arena.counts;
  counts.blocks_reserved++;
  counts.reserved_bytes += *size;
  counts.peak_reserved_bytes = std::max(counts.peak_reserved_bytes, counts.reserved_bytes);
  return {id, 0, *size, *size};
}

void take(Block& block, uint64_t offset, uint64_t num_bytes) {
  auto hole = block.holes.find(offset);
  uint64_t rest = hole->second - num_bytes;
  block.holes.erase(hole);
  if (rest > 0) block.holes[offset + num_bytes] = rest;
}

void give(Block& block, uint64_t offset, uint64_t num_bytes) {
  auto hole = block.holes.emplace(offset, num_bytes).first;
  auto next = std::next(hole);
  if (next != block.holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    block.holes.erase(next);
  }
  if (hole == block.holes.begin()) return;
  auto before = std::prev(hole);
  if (before->first + before->second == hole->first) {
    before->second += hole->second;
    block.holes.erase(hole);
  }
}

uint64_t allocate(Arena& arena, int device, uint64_t num_bytes) {
  Counts& counts = arena.counts;
  counts.requests++;
  counts.request_bytes += num_bytes;
  Place place = arena.open ? best_hole(arena, num_bytes) : Place{};
  if (place.block < 0 && arena.open) place = new_block(arena, device, num_bytes);
  uint64_t address = 0;
  if (place.block >= 0) {
    Block& block = arena.blocks[place.block];
    take(block, place.offset, num_bytes);
    address = block.address + place.offset;
  } else {
    counts.fallbacks++;
    counts.fallback_bytes += num_bytes;
    address = reserve_fn(device, num_bytes);
    if (address == 0) {
      counts.refused++;
      return 0;
    }
    counts.fallback_live_bytes += num_bytes;
  }
  arena.leases[address] = {place.block, num_bytes};
  counts.live_segments++;
  counts.live_bytes += num_bytes;
  counts.peak_live_bytes = std::max(counts.peak_live_bytes, counts.live_bytes);
  return address;
}

void release(Arena& arena, int device, uint64_t address) {
  auto lease = arena.leases.find(address);
  if (lease == arena.leases.end()) return;
  Counts& counts = arena.counts;
  counts.live_segments--;
  counts.live_bytes -= lease->second.num_bytes;
  if (lease->second.block >= 0) {
    Block& block = arena.blocks[lease->second.block];
    give(block, address - block.address, lease->second.num_bytes);
  } else {
    counts.fallback_live_bytes -= lease->second.num_bytes;
    release_fn(device, address);
  }
  arena.leases.erase(lease);
}

}  // namespace

extern "C" {

// Tests hand in a driver of their own; null returns to CUDA's.
void lf_arena_use_driver(ReserveFn reserve, ReleaseFn release_) {
  reserve_fn = reserve != nullptr ? reserve : cuda_reserve;
  release_fn = release_ != nullptr ? release_ : cuda_release;
}

// Opens a device's arena. 0, or 1 where it is open already.
int lf_arena_open(int device, const uint64_t* ladder, int num_sizes, uint64_t budget) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  if (arena.open || !arena.leases.empty()) return 1;
  arena.ladder.assign(ladder, ladder + num_sizes);
  std::sort(arena.ladder.begin(), arena.ladder.end());
  arena.budget = budget;
  arena.counts = Counts{};
  arena.open = true;
  return 0;
}

// Gives blocks without a segment back to the driver; returns their bytes.
uint64_t lf_arena_trim(int device) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  uint64_t trimmed = 0;
  for (auto entry = arena.blocks.begin(); entry != arena.blocks.end();) {
    if (!entry->second.empty()) {
      ++entry;
      continue;
    }
    trimmed += entry->second.num_bytes;
    release_fn(device, entry->second.address);
    entry = arena.blocks.erase(entry);
  }
  arena.counts.reserved_bytes -= trimmed;
  return trimmed;
}

// Closes a device's arena: segments asked for later fall back. Returns the segments that live on.
uint64_t lf_arena_close(int device) {
  lf_arena_trim(device);
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  arena.open = false;
  return arena.counts.live_segments;
}

// The two functions that torch's pluggable allocator calls.
void* lf_arena_alloc(int64_t num_bytes, int device, void* /*stream*/) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  uint64_t rounded = (static_cast<uint64_t>(num_bytes) + kGranule - 1) / kGranule * kGranule;
  return reinterpret_cast<void*>(allocate(arena, device, rounded));
}

void lf_arena_free(void* address, int64_t /*num_bytes*/, int device, void* /*stream*/) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  release(arena, device, reinterpret_cast<uint64_t>(address));
}

// Copies the counts in the order of `Counts`; returns how many there are.
int lf_arena_counts(int device, uint64_t* out, int room) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  const uint64_t* values = reinterpret_cast<const uint64_t*>(&arena.counts);
  int num_values = static_cast<int>(sizeof(Counts) / sizeof(uint64_t));
  std::copy(values, values + std::min(room, num_values), out);
  return num_values;
}

// Copies size and used bytes of every block, oldest first; returns how many blocks there are.
int lf_arena_blocks(int device, uint64_t* sizes, uint64_t* used, int room) {
  Arena& arena = arenas[device];
  std::lock_guard<std::mutex> lock(arena.mutex);
  int index = 0;
  for (const auto& entry : arena.blocks) {
    if (index < room) {
      sizes[index] = entry.second.num_bytes;
      used[index] = entry.second.used();
    }
    index++;
  }
  return index;
}

}  // extern "C"
