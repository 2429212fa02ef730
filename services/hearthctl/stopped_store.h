// StoppedStore: the data folder of a stopped store, opened by hearthctl itself.
//
// Thread safety: none. Ownership: holds the folder as a running store does, until destroyed.
#ifndef HEARTH_SERVICES_HEARTHCTL_STOPPED_STORE_H_
#define HEARTH_SERVICES_HEARTHCTL_STOPPED_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache_store/store/tiered_store.h"
#include "proto/cache_store.pb.h"
#include "proto/snapshot_format.h"

namespace hearth {

class CommandFlags;

struct StoppedStoreFlags {
  std::string data_dir;     // empty: a running store is asked instead
  std::string secret_file;  // empty: the secret is in the folder

  void Declare(CommandFlags* command);
};

// The beginning of the message about a folder without its secret; the advice follows it.
std::string SecretIsNotIn(const std::string& dir);

class StoppedStore {
 public:
  // kFailedPrecondition: no data folder, or a process has it open.
  static absl::StatusOr<std::unique_ptr<StoppedStore>> Open(const StoppedStoreFlags& flags,
                                                            const std::string& tenant);

  std::vector<v1::RestorePointInfo> List();
  // Writes the restore point to `path`; returns the file's size in bytes.
  absl::StatusOr<uint64_t> Export(const Digest& id, const std::string& path, bool replaces);
  // `file`: the whole file, verified. Returns once it is on stable storage.
  absl::StatusOr<v1::PublishAck> Import(const SnapshotHeader& header, absl::string_view file);

 private:
  StoppedStore(std::unique_ptr<TieredStore> store, std::string data_dir, std::string tenant);

  const std::unique_ptr<TieredStore> store_;
  const std::string data_dir_, tenant_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_STOPPED_STORE_H_
