// The store's side of one Publish stream: begin, plan, slices, commit, ack.
//
// Thread safety: streams are independent; one thread serves one.
#ifndef HEARTH_SERVICES_PUBLISH_STREAM_H_
#define HEARTH_SERVICES_PUBLISH_STREAM_H_

#include <grpcpp/support/sync_stream.h>

#include "absl/status/status.h"
#include "cache_store/tiered_store.h"
#include "proto/cache_store.pb.h"

namespace hearth {

// Returns when the ack was sent or the stream failed. A stream that ends before `commit` leaves
// nothing behind.
absl::Status ServePublish(
    TieredStore* store, grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>* stream);

}  // namespace hearth

#endif  // HEARTH_SERVICES_PUBLISH_STREAM_H_
