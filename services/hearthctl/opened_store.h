// OpenedStore: a store that a command calls: one that runs, or a stopped one, whose data folder
// this process opens and serves to itself.
//
// Thread safety: none. Ownership: holds the folder as a running store does, until destroyed.
#ifndef HEARTH_SERVICES_HEARTHCTL_OPENED_STORE_H_
#define HEARTH_SERVICES_HEARTHCTL_OPENED_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cache_store.grpc.pb.h"
#include "services/cli/connection.h"

namespace hearth {

struct StoppedStoreFlags {
  std::string data_dir;     // empty: a running store is asked instead
  std::string secret_file;  // empty: the secret is in the folder

  void Declare(CommandFlags* command);
};

// The beginning of the message about a folder without its secret; the advice follows it.
std::string SecretIsNotIn(const std::string& dir);

class OpenedStore {
 public:
  // kFailedPrecondition: no data folder, or a process has it open.
  static absl::StatusOr<std::unique_ptr<OpenedStore>> Open(const PeerFlags& peer,
                                                           const StoppedStoreFlags& stopped = {});
  ~OpenedStore();

  v1::CacheStore::Stub* stub() const { return stub_.get(); }
  const PeerFlags& peer() const { return peer_; }  // for errors

 private:
  struct Served;
  explicit OpenedStore(PeerFlags peer);
  absl::Status Serve(const StoppedStoreFlags& stopped);

  PeerFlags peer_;
  std::unique_ptr<Served> served_;  // null: it runs elsewhere
  std::unique_ptr<v1::CacheStore::Stub> stub_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_OPENED_STORE_H_
