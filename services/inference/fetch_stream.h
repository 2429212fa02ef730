// The worker's side of a Fetch stream: what its plan announces, and the slices after it.
//
// Thread safety: one stream and one builder a thread.
#ifndef HEARTH_SERVICES_INFERENCE_FETCH_STREAM_H_
#define HEARTH_SERVICES_INFERENCE_FETCH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/cache_store.pb.h"
#include "services/inference/blocking_stream.h"
#include "services/inference/object_builder.h"
#include "worker/prefix/load_trial.h"

namespace hearth {

using FetchStream = BlockingStream<grpc::ByteBuffer, grpc::ByteBuffer>;

std::vector<ObjectBuilder::Announced> AnnouncedObjects(const v1::FetchPlan& plan);

// Takes slices from the stream to its end, or until every one is there when it `stays_open`.
// kAborted: `load` had no patience left, and was told.
absl::Status ReadSlices(FetchStream* stream, bool stays_open, LoadTrial* load,
                        ObjectBuilder* builder, uint64_t* bytes_received);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_FETCH_STREAM_H_
