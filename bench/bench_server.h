// Runs the store of the benchmarks over gRPC in its own process, which the benchmark starts.
//
// Thread safety: called from main.
#ifndef HEARTH_BENCH_BENCH_SERVER_H_
#define HEARTH_BENCH_BENCH_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>

#include <string>

#include "cache_store/store/tiered_store.h"

namespace hearth {

inline constexpr char kAnyPort[] = "127.0.0.1:0";

// Serves a store until the process is killed. Writes the server's address to `address_file` once it
// listens. If options.shared_memory is set, offers the store's memory to clients on this host.
// `program`: program name for errors. `beside`: an additional service for calls that are not the
// store's; borrowed. Returns the exit code for main.
int ServeUntilKilled(const std::string& program, const StoreOptions& options,
                     const std::string& listen, const std::string& address_file,
                     grpc::CallbackGenericService* beside = nullptr);

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_SERVER_H_
