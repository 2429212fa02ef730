// The store of the benchmarks over gRPC. It runs in its own process, which a benchmark starts.
//
// Thread safety: called from main.
#ifndef HEARTH_BENCH_BENCH_SERVER_H_
#define HEARTH_BENCH_BENCH_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>

#include <string>

#include "cache_store/store/tiered_store.h"

namespace hearth {

inline constexpr char kAnyPort[] = "127.0.0.1:0";

// Serves a store until killed; writes its address to `address_file` once it listens. If
// options.shared_memory is set, offers its memory to clients on this host. `program`: name in
// errors. `beside`: borrowed; answers calls that are not the store's. Returns main's exit code.
int ServeUntilKilled(const std::string& program, const StoreOptions& options,
                     const std::string& listen, const std::string& address_file,
                     grpc::CallbackGenericService* beside = nullptr);

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_SERVER_H_
