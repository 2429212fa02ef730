// Who calls, and which tenant's store that caller may name: the one place that decides.
//
// A caller proves who it is by a bearer token ("authorization: Bearer ..." in the call's metadata)
// or by a client certificate that the TLS handshake verified; a token that is sent must be right,
// certificate or not. The file of --identities-file says what each may do (docs/operations.md).
// With neither file nor client CA there is one tenant, `default`, and nobody is asked.
// Thread safety: all methods from any thread.
// Invariants: (1) the file holds digests of tokens, never tokens; (2) a caller with role `tenant`
// gets its own tenant or an error; (3) comparing tokens takes the same time for all of them;
// (4) a file that changed is read anew, one that became wrong changes nothing and is logged once;
// (5) the public namespace is written by those whom the file says may, whatever their role.
#ifndef HEARTH_SERVICES_IDENTITY_H_
#define HEARTH_SERVICES_IDENTITY_H_

#include <grpcpp/support/config.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace hearth {

inline constexpr char kDefaultTenant[] = "default";

enum class Role {
  kNobody,  // no identities are asked for
  kTenant,  // sees and names its own tenant only
  kWorker,  // asserts the tenant that it authenticated itself
  kAdmin,   // any tenant
};

struct Identity {
  std::string name;
  Role role = Role::kNobody;
  std::string tenant = kDefaultTenant;  // its own
  // Read beside any tenant's own prefixes; empty: there is none.
  std::string public_tenant;
  bool publishes_public = false;  // may name it as any tenant that it may name

  // The tenant a request is about. Empty: the caller's own. kPermissionDenied for one that this
  // caller may not name, kInvalidArgument for what is no tenant's name.
  absl::StatusOr<std::string> TenantOf(const std::string& asserted) const;
  // May see figures and memory of all tenants together.
  bool sees_all() const { return role != Role::kTenant; }
};

// What a caller showed.
struct Credentials {
  std::vector<std::string> certificate_names;  // common name and alternative names; verified
  std::optional<std::string> token;            // empty: a header that holds none; nobody's
};

class Identities {
 public:
  struct Options {
    std::string file;           // empty: none
    bool certificates = false;  // a client certificate without an entry is its own tenant
    absl::Duration recheck = absl::Seconds(1);  // how often the file may be looked at
  };

  // Everybody is Role::kNobody when `options` ask for nothing. The error names file, entry and
  // what to do.
  static absl::StatusOr<std::unique_ptr<Identities>> Open(const Options& options);

  // kUnauthenticated without saying which part was wrong.
  absl::StatusOr<Identity> Identify(const grpc::ServerContextBase& context);
  absl::StatusOr<Identity> Identify(const Credentials& credentials);
  bool asks_for_tokens() const;

 private:
  struct Entry {
    Identity identity;
    std::optional<Digest> token_digest;
    std::string certificate;  // empty: none
  };
  struct FileState {
    uint64_t device = 0, inode = 0, bytes = 0;
    int64_t changed_ns = 0;
    bool operator==(const FileState& other) const {
      return device == other.device && inode == other.inode && bytes == other.bytes &&
             changed_ns == other.changed_ns;
    }
  };
  using Entries = std::shared_ptr<const std::vector<Entry>>;
  struct Parser;

  explicit Identities(Options options) : options_(std::move(options)) {}
  bool asks_nobody() const { return options_.file.empty() && !options_.certificates; }
  absl::Status Load();
  Entries Current() ABSL_LOCKS_EXCLUDED(mutex_);
  static FileState StateOf(const std::string& file);

  const Options options_;
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_) = std::make_shared<std::vector<Entry>>();
  FileState state_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_check_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

// Who calls; Role::kNobody without `identities`.
absl::StatusOr<Identity> CallerOf(Identities* identities, const grpc::ServerContextBase& context);

}  // namespace hearth

#endif  // HEARTH_SERVICES_IDENTITY_H_
