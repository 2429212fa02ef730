// Keys and values as the bytes of a snapshot file, and back.
//
// The format is proto/snapshot_format.h's. Thread safety: pure functions on their arguments.
// Ownership: both directions copy.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_SNAPSHOT_FILE_H_
#define HEARTH_WORKER_ENGINE_RUNNER_SNAPSHOT_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/snapshot_format.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {

// The file of the restore point at the end of `token_ids`. kAborted: a loan ended meanwhile.
// REQUIRES: `objects` are whole and sealed, in NeededObjects order.
absl::StatusOr<std::string> MakeSnapshotFile(const Fingerprint& fingerprint, const KvLayout& layout,
                                             std::vector<uint32_t> token_ids,
                                             const KvObjects& objects);

// The objects of a whole file, in its order. REQUIRES: VerifySnapshotFile(file) is OK and `header`
// is its header.
KvObjects ObjectsOfSnapshot(const SnapshotHeader& header, absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_SNAPSHOT_FILE_H_
