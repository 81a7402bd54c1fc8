// The CUDA runtime and driver, as far as CuPy calls them for gpuload, over host memory and threads.
//
// Streams   Each is a thread that does its work in order, and late (Options::late_us). Work is a copy, a kernel that g++
//           compiled (kernel.h), a point of an event or a wait for one. The null stream of a device runs behind all its
//           blocking streams, and they behind it; the default stream of a thread (handle 2) is a blocking one.
// Strict    A stream or event that was destroyed is refused wherever it is used, and work on a stream of another device, a
//           copy of what is no device memory, and a launch that no card takes. Each refusal is a fault that `emulated_faults`
//           counts; CUDA leaves most of them undefined. Device memory is filled with bytes that no test expects.
// Counts    Every call is counted under its name; uploads by bytes and by whether the host memory was pinned.
// Sanitize  Kernels that were compiled with sanitizers report to this file.
// Failures  `emulated_fail` lets a call return an error, alone or with all behind it, as of a card that falls off the bus.
// Handles   Streams and events that were destroyed stay in memory, so that their use is seen.
//
// The types are those of CUDA's own headers, so the compiler compares every signature.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Options {
  int num_devices = 1;
  int late_us = 0;              // work begins up to so much later than it could
  size_t memory_bytes = 80ull << 30;  // of each device
  int driver_version = 13000;   // 0: there is no driver
  int idle = 0;                 // 1: nothing is run or copied, what comes back is zeros: the time of the host is left
};

struct Event {
  uint64_t recorded = 0, passed = 0;
  int device = 0;
  bool is_destroyed = false;
};

struct Work {
  std::function<void()> run;
  Event* awaited = nullptr;  // runs when `awaited` has passed its point `point`
  uint64_t point = 0;
  bool is_event = false;  // it passes an event, also on a broken device: whoever waits for it ends
};

struct Stream {
  explicit Stream(int device, bool is_blocking) : device(device), is_blocking(is_blocking) {}
  int device;
  bool is_blocking;
  std::deque<Work> work;
  uint64_t num_queued = 0, num_done = 0;
  bool is_started = false, is_destroyed = false;
};

struct Block {
  size_t num_bytes;
  int device;
};

using Blocks = std::map<const char*, Block>;

// What lives as long as the process is never destroyed: threads of streams still run when the process ends.
struct State {
  Options options;
  pid_t pid = getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, Stream*> null_streams;
  std::set<Stream*> streams;
  Blocks device_blocks, pinned_blocks;
  std::map<int, size_t> used_bytes;
  std::map<std::string, long> counts, launches;  // of calls; of each kernel, by its name
  long num_calls = 0, num_faults = 0;
  long failing_call = 0;  // 0: none
  cudaError_t failure = cudaSuccess;
  bool failure_stays = false;
  std::atomic<int> broken{cudaSuccess};  // the error that every call returns
  std::string failed_name;
};

State& state = *new State;
using Lock = std::unique_lock<std::mutex>;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Refuses a call that CUDA would leave undefined or refuse.
cudaError_t fault(const char* call, const char* cause, cudaError_t error) {
  fprintf(stderr, "emulated GPU: %s: %s\n", call, cause);
  Lock lock(state.mutex);
  state.num_faults++;
  return returned(error);
}

// Every call begins here: it is counted, and fails where it was told to.
cudaError_t begin(const char* call) {
  if (getpid() != state.pid) return cudaErrorInitializationError;  // as CUDA in a process that was forked off
  Lock lock(state.mutex);
  state.counts[call]++;
  if (state.broken != cudaSuccess) return returned(static_cast<cudaError_t>(state.broken.load()));
  if (state.options.driver_version < CUDART_VERSION / 1000 * 1000) return returned(cudaErrorInsufficientDriver);
  if (++state.num_calls != state.failing_call) return cudaSuccess;
  state.failed_name = call;
  if (state.failure_stays) {
    state.broken = state.failure;
    state.changed.notify_all();
  }
  return returned(state.failure);
}

void count(const char* name, long number = 1) {
  Lock lock(state.mutex);
  state.counts[name] += number;
}

Stream* null_stream(int device) {
  Stream*& stream = state.null_streams[device];
  if (stream == nullptr) stream = new Stream(device, true);
  return stream;
}

// What is queued on a stream that is destroyed still runs, and the device is waited for until it has: its thread is the
// one that forgets it. The caller holds the lock.
void destroy(Stream* stream) {
  stream->is_destroyed = true;
  if (!stream->is_started) state.streams.erase(stream);
  state.changed.notify_all();
}

// The default streams of a thread of the host, one for each device. When the thread ends, what was queued there still runs.
struct ThreadStreams {
  std::map<int, Stream*> streams;

  ~ThreadStreams() {
    Lock lock(state.mutex);
    for (auto& [device, stream] : streams) destroy(stream);
  }
};

thread_local ThreadStreams thread_streams;

Stream* find_stream(cudaStream_t handle) {
  Lock lock(state.mutex);
  if (handle == nullptr || handle == cudaStreamLegacy) return null_stream(current_device);
  if (handle == cudaStreamPerThread) {
    Stream*& stream = thread_streams.streams[current_device];
    if (stream == nullptr) state.streams.insert(stream = new Stream(current_device, true));
    return stream;
  }
  return reinterpret_cast<Stream*>(handle);
}

Event* find_event(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

void sleep_a_while() {
  thread_local unsigned random = 12345 + static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id()));
  random = random * 1664525u + 1013904223u;
  usleep((random >> 8) % state.options.late_us);
}

// The thread of a stream. A device that is broken does no work any more, but its streams empty.
void serve(Stream* stream) {
  Lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return !stream->work.empty() || stream->is_destroyed; });
    if (stream->work.empty()) {
      state.streams.erase(stream);
      return;
    }
    Work& work = stream->work.front();
    state.changed.wait(lock, [&] { return !work.awaited || work.awaited->passed >= work.point || state.broken; });
    auto run = std::move(work.run);
    const bool is_event = work.is_event;
    lock.unlock();
    if (state.options.late_us) sleep_a_while();
    if (run && (!state.broken || is_event)) run();
    run = nullptr;
    lock.lock();
    stream->work.pop_front();
    stream->num_done++;
    state.changed.notify_all();
  }
}

// Waits for what was queued on a stream, also on a broken device, whose streams drop it: work that has begun may still
// write to the memory of who waits. Returns the error of a broken device.
cudaError_t wait_until(Lock& lock, Stream* stream, uint64_t number) {
  state.changed.wait(lock, [&] { return stream->num_done >= number; });
  return returned(static_cast<cudaError_t>(state.broken.load()));
}

cudaError_t wait_until(Stream* stream, uint64_t number) {
  Lock lock(state.mutex);
  return wait_until(lock, stream, number);
}

// Queues work and returns its number on the stream.
uint64_t queue(Stream* stream, std::function<void()> run, Event* awaited = nullptr, uint64_t point = 0, bool is_event = false) {
  Lock lock(state.mutex);
  Stream* null = null_stream(stream->device);
  if (stream == null) {
    for (Stream* other : std::set<Stream*>(state.streams))  // a copy: others come and go while this one waits
      if (other->is_blocking && other->device == stream->device) wait_until(lock, other, other->num_queued);
  } else if (stream->is_blocking) {
    wait_until(lock, null, null->num_queued);
  }
  if (!stream->is_started) {
    stream->is_started = true;
    std::thread(serve, stream).detach();
  }
  stream->work.push_back({std::move(run), awaited, point, is_event});
  stream->num_queued++;
  state.changed.notify_all();
  return stream->num_queued;
}

const Blocks::value_type* find_block(const Blocks& blocks, const void* address) {
  auto block = blocks.upper_bound(static_cast<const char*>(address));
  if (block == blocks.begin()) return nullptr;
  --block;
  return static_cast<const char*>(address) < block->first + block->second.num_bytes ? &*block : nullptr;
}

bool is_device(const void* address) {
  Lock lock(state.mutex);
  return find_block(state.device_blocks, address) != nullptr;
}

bool is_pinned(const void* address) {
  Lock lock(state.mutex);
  return find_block(state.pinned_blocks, address) != nullptr;
}

cudaError_t allocate(void** address, size_t num_bytes, Blocks& blocks, int device, int filler) {
  const bool on_device = &blocks == &state.device_blocks;
  Lock lock(state.mutex);
  if (on_device && state.used_bytes[device] + num_bytes > state.options.memory_bytes) return returned(cudaErrorMemoryAllocation);
  void* memory = nullptr;
  if (posix_memalign(&memory, on_device ? 512 : 4096, num_bytes ? num_bytes : 1)) return returned(cudaErrorMemoryAllocation);
  memset(memory, filler, num_bytes);
  blocks[static_cast<char*>(memory)] = {num_bytes, device};
  if (on_device) state.used_bytes[device] += num_bytes;
  *address = memory;
  return cudaSuccess;
}

cudaError_t wait_for_device() {
  std::vector<std::pair<Stream*, uint64_t>> ends;
  {
    Lock lock(state.mutex);
    ends.emplace_back(null_stream(current_device), null_stream(current_device)->num_queued);
    for (Stream* stream : state.streams)
      if (stream->device == current_device) ends.emplace_back(stream, stream->num_queued);
  }
  cudaError_t error = cudaSuccess;
  for (auto& [stream, number] : ends) error = wait_until(stream, number);
  return error;
}

cudaError_t release(const char* call, void* address, Blocks& blocks) {
  wait_for_device();  // nothing may use memory that is freed
  Lock lock(state.mutex);
  auto block = blocks.find(static_cast<char*>(address));
  if (block == blocks.end()) {
    lock.unlock();
    return fault(call, "this memory was not allocated here", cudaErrorInvalidValue);
  }
  if (&blocks == &state.device_blocks) state.used_bytes[block->second.device] -= block->second.num_bytes;
  memset(address, 0xDD, block->second.num_bytes);
  blocks.erase(block);
  free(address);
  return cudaSuccess;
}

cudaError_t check_stream(const char* call, const Stream* stream) {
  if (stream->is_destroyed) return fault(call, "the stream was destroyed", cudaErrorInvalidResourceHandle);
  return cudaSuccess;
}

cudaError_t check_here(const char* call, const Stream* stream) {
  if (cudaError_t error = check_stream(call, stream)) return error;
  if (stream->device != current_device)
    return fault(call, "the stream is of another device than the current one", cudaErrorInvalidResourceHandle);
  return cudaSuccess;
}

cudaError_t check_event(const char* call, const Event* event) {
  if (event->is_destroyed) return fault(call, "the event was destroyed", cudaErrorInvalidResourceHandle);
  return cudaSuccess;
}

cudaError_t create_stream(cudaStream_t* handle, bool is_blocking) {
  auto* stream = new Stream(current_device, is_blocking);
  Lock lock(state.mutex);
  state.streams.insert(stream);
  *handle = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* handle) {
  auto* event = new Event;
  event->device = current_device;
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

cudaError_t copy(const char* call, void* target, const void* origin, size_t num_bytes, cudaMemcpyKind kind, Stream* stream) {
  if (cudaError_t error = check_stream(call, stream)) return error;
  const bool to_device = is_device(target), from_device = is_device(origin);
  if (kind == cudaMemcpyHostToDevice && !to_device) return fault(call, "an upload to what is no device memory", cudaErrorInvalidValue);
  if (kind == cudaMemcpyDeviceToHost && !from_device) return fault(call, "a download of what is no device memory", cudaErrorInvalidValue);
  const bool in_pinned = is_pinned(to_device ? origin : target);
  if (to_device && !from_device) {
    count("uploads");
    count("uploaded bytes", static_cast<long>(num_bytes));
    if (!in_pinned) count("pageable uploads");
  } else {
    count(from_device && !to_device ? "downloads" : "device copies");
  }
  if (state.options.idle) {  // what comes back is zeros: no flag of a check is set
    if (from_device && !to_device) memset(target, 0, num_bytes);
    return cudaSuccess;
  }
  const uint64_t number = queue(stream, [=] { memcpy(target, origin, num_bytes); });
  // A copy from or to memory that is not pinned has read or written it when the call returns.
  return (to_device && from_device) || in_pinned ? cudaSuccess : wait_until(stream, number);
}

}  // namespace

// ---- the stand-in's own calls, for emulated_gpu/__init__.py

extern "C" void emulated_configure(int num_devices, int late_us, size_t memory_bytes, int driver_version, int idle) {
  Lock lock(state.mutex);
  state.options = {num_devices, late_us, memory_bytes, driver_version, idle};
}

// Lets the `call`-th call from now on return `failure`; with `stays`, all behind it, too. 0 repairs the device.
extern "C" void emulated_fail(long call, int failure, int stays) {
  Lock lock(state.mutex);
  // What was queued on a broken device is dropped to its end: a kernel must not run without the copies before it.
  if (state.broken)
    for (Stream* stream : std::set<Stream*>(state.streams)) wait_until(lock, stream, stream->num_queued);
  state.failing_call = call ? state.num_calls + call : 0;
  state.failure = static_cast<cudaError_t>(failure);
  state.failure_stays = stays;
  state.failed_name.clear();
  state.broken = cudaSuccess;
}

// The name of the call that `emulated_fail` let fail; empty if there was none yet.
extern "C" void emulated_failed(char* name, size_t num_bytes) {
  Lock lock(state.mutex);
  snprintf(name, num_bytes, "%s", state.failed_name.c_str());
}

extern "C" long emulated_faults() {
  Lock lock(state.mutex);
  return state.num_faults;
}

extern "C" long emulated_pinned_pieces() {
  Lock lock(state.mutex);
  return static_cast<long>(state.pinned_blocks.size());
}

extern "C" long emulated_calls() {
  Lock lock(state.mutex);
  return state.num_calls;
}

// Writes the counts, one "name=number" a line, and returns how many bytes they need.
static size_t write_counts(const std::map<std::string, long>& counts, char* text, size_t num_bytes) {
  std::string lines;
  for (auto& [name, number] : counts) lines += name + "=" + std::to_string(number) + "\n";
  snprintf(text, num_bytes, "%s", lines.c_str());
  return lines.size() + 1;
}

extern "C" size_t emulated_counts(char* text, size_t num_bytes) {
  Lock lock(state.mutex);
  return write_counts(state.counts, text, num_bytes);
}

extern "C" size_t emulated_launches(char* text, size_t num_bytes) {
  Lock lock(state.mutex);
  return write_counts(state.launches, text, num_bytes);
}

// What stands in the place of every call of the runtime that is not below.
extern "C" cudaError_t emulated_missing(const char* call) {
  return fault(call, "the emulated GPU does not have this call", cudaErrorNotSupported);
}

// ---- what sanitizers find in a kernel that was compiled with them: each is a fault

static thread_local const char* running_kernel = "a kernel";

// Has each report of AddressSanitizer be a fault; returns 0 where its library is not loaded.
extern "C" int emulated_watch() {
  using Callback = void (*)(const char*);
  auto watch = reinterpret_cast<void (*)(Callback)>(dlsym(RTLD_DEFAULT, "__asan_set_error_report_callback"));
  if (watch == nullptr) return 0;
  watch([](const char*) { fault(running_kernel, "AddressSanitizer: see the report above", cudaErrorIllegalAddress); });
  return 1;
}

// The calls that GCC's UndefinedBehaviorSanitizer puts into a kernel. Their first argument begins with the place.
struct Place {
  const char* file;
  uint32_t line, column;
};

static void undefined(const Place* place, const char* cause) {
  {
    Lock lock(state.mutex);
    static std::set<const Place*>& places = *new std::set<const Place*>;
    if (!places.insert(place).second) {  // told once
      state.num_faults++;
      return;
    }
  }
  const std::string text = std::string(cause) + ", " + place->file + ", line " + std::to_string(place->line);
  fault(running_kernel, text.c_str(), cudaErrorIllegalAddress);
}

extern "C" {
void __ubsan_handle_type_mismatch_v1(Place* place, void* address) {
  undefined(place, address ? "an address with the wrong alignment" : "an address of 0");
}
void __ubsan_handle_out_of_bounds(Place* place, void*) { undefined(place, "an index outside of its array"); }
void __ubsan_handle_float_cast_overflow(Place* place, void*) { undefined(place, "a cast of what the type does not hold"); }
void __ubsan_handle_shift_out_of_bounds(Place* place, void*, void*) { undefined(place, "a shift by too many bits"); }
void __ubsan_handle_divrem_overflow(Place* place, void*, void*) { undefined(place, "a division by 0"); }
void __ubsan_handle_add_overflow(Place* place, void*, void*) { undefined(place, "a sum that overflows"); }
void __ubsan_handle_sub_overflow(Place* place, void*, void*) { undefined(place, "a difference that overflows"); }
void __ubsan_handle_mul_overflow(Place* place, void*, void*) { undefined(place, "a product that overflows"); }
void __ubsan_handle_negate_overflow(Place* place, void*) { undefined(place, "a number whose negative overflows"); }
}

// ---- the runtime

#define BEGIN() \
  if (cudaError_t failure = begin(__func__)) return failure

extern "C" {

cudaError_t cudaGetDeviceCount(int* number) {
  BEGIN();
  *number = state.options.num_devices;
  return *number ? cudaSuccess : returned(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  BEGIN();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BEGIN();
  if (device < 0 || device >= state.options.num_devices) return returned(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state.options.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Those of an H100, as far as CuPy asks.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  BEGIN();
  static const std::map<int, int> attributes = {
      {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535}, {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}, {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048}, {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrMemoryPoolsSupported, 1}};
  auto entry = attributes.find(attribute);
  *value = entry == attributes.end() ? 0 : entry->second;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  BEGIN();
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "Emulated GPU");
  properties->totalGlobalMem = state.options.memory_bytes;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int num_bytes, int device) {
  BEGIN();
  snprintf(text, num_bytes, "0000:%02X:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  BEGIN();
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  BEGIN();
  return wait_for_device();
}

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorSystemNotReady: return "cudaErrorSystemNotReady";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "an error of the emulated GPU";
  }
}

cudaError_t cudaMalloc(void** address, size_t num_bytes) {
  BEGIN();
  return allocate(address, num_bytes, state.device_blocks, current_device, 0xA5);
}

cudaError_t cudaFree(void* address) {
  BEGIN();
  return address ? release(__func__, address, state.device_blocks) : cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t num_bytes, unsigned) {
  BEGIN();
  count("pinned bytes", static_cast<long>(num_bytes));
  return allocate(address, num_bytes, state.pinned_blocks, current_device, 0x5A);
}

cudaError_t cudaFreeHost(void* address) {
  BEGIN();
  return address ? release(__func__, address, state.pinned_blocks) : cudaSuccess;
}

// Memory that a program allocated itself becomes pinned, and is that until it is unregistered.
cudaError_t cudaHostRegister(void* address, size_t num_bytes, unsigned) {
  BEGIN();
  count("pinned bytes", static_cast<long>(num_bytes));
  Lock lock(state.mutex);
  state.pinned_blocks[static_cast<char*>(address)] = {num_bytes, current_device};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  BEGIN();
  wait_for_device();
  Lock lock(state.mutex);
  return state.pinned_blocks.erase(static_cast<char*>(address)) ? cudaSuccess : returned(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  BEGIN();
  Lock lock(state.mutex);
  *total_bytes = state.options.memory_bytes;
  *free_bytes = *total_bytes - state.used_bytes[current_device];
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* origin, size_t num_bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  BEGIN();
  return copy(__func__, target, origin, num_bytes, kind, find_stream(handle));
}

cudaError_t cudaMemcpy(void* target, const void* origin, size_t num_bytes, cudaMemcpyKind kind) {
  BEGIN();
  Stream* stream = find_stream(nullptr);
  if (cudaError_t error = copy(__func__, target, origin, num_bytes, kind, stream)) return error;
  return wait_until(stream, stream->num_queued);
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t num_bytes, cudaStream_t handle) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  if (!is_device(target)) return fault(__func__, "this is no device memory", cudaErrorInvalidValue);
  if (!state.options.idle) queue(stream, [=] { memset(target, value, num_bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* target, int value, size_t num_bytes) { return cudaMemsetAsync(target, value, num_bytes, nullptr); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  BEGIN();
  Lock lock(state.mutex);
  const auto* on_device = find_block(state.device_blocks, address);
  const auto* pinned = find_block(state.pinned_blocks, address);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = on_device ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->device = on_device ? on_device->second.device : pinned ? pinned->second.device : -2;
  attributes->devicePointer = on_device || pinned ? const_cast<void*>(address) : nullptr;
  attributes->hostPointer = on_device ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  BEGIN();
  return create_stream(handle, true);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  BEGIN();
  return create_stream(handle, !(flags & cudaStreamNonBlocking));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  BEGIN();
  return create_stream(handle, !(flags & cudaStreamNonBlocking));
}

// What was queued still runs; the handle is of no use at once.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  Lock lock(state.mutex);
  destroy(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  return wait_until(stream, stream->num_queued);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  Lock lock(state.mutex);
  return stream->num_done >= stream->num_queued ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  BEGIN();
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  BEGIN();
  *flags = find_stream(handle)->is_blocking ? cudaStreamDefault : cudaStreamNonBlocking;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  BEGIN();
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  BEGIN();
  Stream* stream = find_stream(handle);
  Event* event = find_event(event_handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  if (cudaError_t error = check_event(__func__, event)) return error;
  if (state.options.idle) return cudaSuccess;
  uint64_t point;
  {
    Lock lock(state.mutex);
    point = event->recorded;
  }
  queue(stream, nullptr, event, point);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data, unsigned) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  queue(stream, [=] { callback(handle, cudaSuccess, data); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  BEGIN();
  Stream* stream = find_stream(handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  queue(stream, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  BEGIN();
  return create_event(handle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  BEGIN();
  return create_event(handle);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  BEGIN();
  Event* event = find_event(handle);
  if (cudaError_t error = check_event(__func__, event)) return error;
  event->is_destroyed = true;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  BEGIN();
  Stream* stream = find_stream(handle);
  Event* event = find_event(event_handle);
  if (cudaError_t error = check_stream(__func__, stream)) return error;
  if (cudaError_t error = check_event(__func__, event)) return error;
  if (event->device != stream->device)
    return fault(__func__, "the event and the stream are of two devices", cudaErrorInvalidResourceHandle);
  if (state.options.idle) return cudaSuccess;
  uint64_t point;
  {
    Lock lock(state.mutex);
    point = ++event->recorded;
  }
  const auto pass = [=] {
    Lock lock(state.mutex);
    if (event->passed < point) event->passed = point;
    state.changed.notify_all();
  };
  queue(stream, pass, nullptr, 0, true);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  BEGIN();
  Event* event = find_event(handle);
  if (cudaError_t error = check_event(__func__, event)) return error;
  Lock lock(state.mutex);
  return event->passed >= event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  BEGIN();
  Event* event = find_event(handle);
  if (cudaError_t error = check_event(__func__, event)) return error;
  Lock lock(state.mutex);
  const uint64_t point = event->recorded;
  state.changed.wait(lock, [&] { return event->passed >= point; });
  return returned(static_cast<cudaError_t>(state.broken.load()));
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  BEGIN();
  *ms = 1;  // time means nothing here
  return cudaSuccess;
}

// ---- the driver: names of errors, and contexts

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

// The context of device N is the number N + 1; only the primary ones exist.
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(current_device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) current_device = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }

// ---- the driver, as kvikio calls it to read files: the same memory and streams by the driver's names

static thread_local std::vector<CUcontext> pushed_contexts;

static CUresult driver_error(cudaError_t error) { return static_cast<CUresult>(error); }

static void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

// NVRTC asks for tables that NVIDIA does not document, and does without them where there are none.
CUresult cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_FOUND; }

CUresult cuDriverGetVersion(int* version) { return driver_error(cudaDriverGetVersion(version)); }

CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* number) { return driver_error(cudaGetDeviceCount(number)); }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_error(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  CUcontext current;
  cuCtxGetCurrent(&current);
  pushed_contexts.push_back(current);
  return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (pushed_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) cuCtxGetCurrent(context);
  cuCtxSetCurrent(pushed_contexts.back());
  pushed_contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext*, CUctxCreateParams*, unsigned, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuCtxDestroy(CUcontext) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuMemHostAlloc(void** address, size_t num_bytes, unsigned flags) {
  return driver_error(cudaHostAlloc(address, num_bytes, flags));
}

CUresult cuMemFreeHost(void* address) { return driver_error(cudaFreeHost(address)); }

CUresult cuMemHostRegister(void* address, size_t num_bytes, unsigned flags) {
  return driver_error(cudaHostRegister(address, num_bytes, flags));
}

CUresult cuMemHostUnregister(void* address) { return driver_error(cudaHostUnregister(address)); }

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* origin, size_t num_bytes, CUstream stream) {
  return driver_error(cudaMemcpyAsync(as_pointer(target), origin, num_bytes, cudaMemcpyHostToDevice, stream));
}

CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr origin, size_t num_bytes, CUstream stream) {
  return driver_error(cudaMemcpyAsync(target, as_pointer(origin), num_bytes, cudaMemcpyDeviceToHost, stream));
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr origin, size_t num_bytes, CUstream stream) {
  const cudaMemcpyKind kinds[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                      {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
  const cudaMemcpyKind kind = kinds[is_device(as_pointer(origin))][is_device(as_pointer(target))];
  return driver_error(cudaMemcpyAsync(as_pointer(target), as_pointer(origin), num_bytes, kind, stream));
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* origins, size_t* sizes, size_t number, CUmemcpyAttributes*,
                            size_t*, size_t, CUstream stream) {
  for (size_t i = 0; i < number; i++)
    if (CUresult error = cuMemcpyAsync(targets[i], origins[i], sizes[i], stream)) return error;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  cudaPointerAttributes attributes;
  if (cudaError_t error = cudaPointerGetAttributes(&attributes, as_pointer(address))) return driver_error(error);
  if (attributes.type == cudaMemoryTypeUnregistered) return CUDA_ERROR_INVALID_VALUE;
  const bool on_device = attributes.type == cudaMemoryTypeDevice;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return cuDevicePrimaryCtxRetain(static_cast<CUcontext*>(value), attributes.device);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = attributes.device; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(value) = 0; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// One that cannot be told is left as it is, as CUDA does with memory that is not its own.
CUresult cuPointerGetAttributes(unsigned number, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  for (unsigned i = 0; i < number; i++) cuPointerGetAttribute(values[i], attributes[i], address);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* num_bytes, CUdeviceptr address) {
  Lock lock(state.mutex);
  const auto* block = find_block(state.device_blocks, as_pointer(address));
  if (!block) return CUDA_ERROR_NOT_FOUND;
  if (begin) *begin = reinterpret_cast<CUdeviceptr>(block->first);
  if (num_bytes) *num_bytes = block->second.num_bytes;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return driver_error(cudaStreamCreateWithFlags(stream, flags)); }

CUresult cuStreamDestroy(CUstream stream) { return driver_error(cudaStreamDestroy(stream)); }

CUresult cuStreamSynchronize(CUstream stream) { return driver_error(cudaStreamSynchronize(stream)); }

CUresult cuEventCreate(CUevent* event, unsigned flags) { return driver_error(cudaEventCreateWithFlags(event, flags)); }

CUresult cuEventDestroy(CUevent event) { return driver_error(cudaEventDestroy(event)); }

CUresult cuEventRecord(CUevent event, CUstream stream) { return driver_error(cudaEventRecord(event, stream)); }

CUresult cuEventQuery(CUevent event) { return driver_error(cudaEventQuery(event)); }

CUresult cuEventSynchronize(CUevent event) { return driver_error(cudaEventSynchronize(event)); }

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return driver_error(cudaLaunchHostFunc(stream, function, data));
}

// ---- the driver: modules and launches

struct Kernel {
  void (*run)(void** arguments, const unsigned* grid_and_block);
  const size_t* argument_bytes;
  size_t num_arguments;
  std::string name;
};

constexpr char IMAGE[] = "emulated:";  // and behind it the path of a shared library: what the patched compiler returns

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (cudaError_t error = begin(__func__)) return static_cast<CUresult>(error);
  const char* text = static_cast<const char*>(image);
  if (strncmp(text, IMAGE, sizeof IMAGE - 1)) return CUDA_ERROR_INVALID_IMAGE;
  void* library = dlopen(text + sizeof IMAGE - 1, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "emulated GPU: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = static_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (cudaError_t error = begin(__func__)) return static_cast<CUresult>(error);
  auto run = reinterpret_cast<void (*)(void**, const unsigned*)>(dlsym(module, (std::string(name) + "__run").c_str()));
  auto sizes = reinterpret_cast<const size_t* (*)(size_t*)>(dlsym(module, (std::string(name) + "__sizes").c_str()));
  if (run == nullptr || sizes == nullptr) return CUDA_ERROR_NOT_FOUND;
  auto* kernel = new Kernel{run, nullptr, 0, name};
  kernel->argument_bytes = sizes(&kernel->num_arguments);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* num_bytes, CUmodule module, const char* name) {
  *address = reinterpret_cast<CUdeviceptr>(dlsym(module, name));
  *num_bytes = 0;
  return *address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* number, CUfunction, int, size_t) {
  *number = 4;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int) {
  *grid = 132;
  *block = 1024;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void** arguments, void**) {
  if (cudaError_t error = begin(__func__)) return static_cast<CUresult>(error);
  auto* kernel = reinterpret_cast<Kernel*>(function);
  Stream* stream = find_stream(handle);
  if (check_here(kernel->name.c_str(), stream)) return CUDA_ERROR_INVALID_HANDLE;
  const size_t num_threads = size_t(block_x) * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || !num_threads || num_threads > 1024 || grid_y > 65535 || grid_z > 65535 || block_z > 64 ||
      shared_bytes > 232448) {
    fault(kernel->name.c_str(), "no card takes this size of grid or block", cudaErrorInvalidValue);
    return CUDA_ERROR_INVALID_VALUE;
  }
  {
    Lock lock(state.mutex);
    state.launches[kernel->name]++;
  }
  static const bool log = getenv("EMULATED_GPU_LOG") != nullptr;
  if (log) fprintf(stderr, "launch %s: %u x %u x %u blocks of %zu threads\n", kernel->name.c_str(), grid_x, grid_y, grid_z, num_threads);
  if (state.options.idle) return CUDA_SUCCESS;
  // The caller may change its arguments as soon as the call returns.
  auto values = std::make_shared<std::vector<std::vector<char>>>();
  for (size_t i = 0; i < kernel->num_arguments; i++) {
    const char* argument = static_cast<char*>(arguments[i]);
    values->emplace_back(argument, argument + kernel->argument_bytes[i]);
  }
  queue(stream, [=] {
    std::vector<void*> pointers;
    for (auto& value : *values) pointers.push_back(value.data());
    const unsigned grid_and_block[] = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes};
    running_kernel = kernel->name.c_str();
    kernel->run(pointers.data(), grid_and_block);
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
