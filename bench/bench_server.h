// The store of the benchmarks over gRPC: in a process of its own, which one of them starts.
//
// Thread safety: called from main.
#ifndef HEARTH_BENCH_BENCH_SERVER_H_
#define HEARTH_BENCH_BENCH_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>

#include <string>

#include "cache_store/store/tiered_store.h"

namespace hearth {

inline constexpr char kAnyPort[] = "127.0.0.1:0";

// Serves a store until killed; writes its address once it listens. Offers its memory to clients of
// this host where options.shared_memory. `program` says who failed to start; `beside`, which is
// borrowed, answers what is not the store's. Returns main's exit code.
int ServeUntilKilled(const std::string& program, const StoreOptions& options,
                     const std::string& listen, const std::string& address_file,
                     grpc::CallbackGenericService* beside = nullptr);

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_SERVER_H_
