// Identities: decides who a caller is, and which tenants' data it may name.
//
// A caller proves who it is by a bearer token ("authorization: Bearer ..." in the call's metadata)
// or by a client certificate that the TLS handshake verified; a token that is sent must be right,
// certificate or not. The file of --identities-file says what each may do (docs/security.md).
// With neither file nor client CA there is one tenant, `default`, and no caller is asked for an
// identity.
// Thread safety: all methods from any thread.
// Invariants: (1) the file holds digests of tokens, never tokens; (2) a caller with role `tenant`
// gets its own tenant or an error; (3) comparing tokens takes the same time for all of them;
// (4) a file that changed is read again; one that became invalid changes nothing and is logged
// once; (5) only callers with that permission in the file write the public namespace, whatever
// their role.
#ifndef HEARTH_SERVICES_SERVING_ACCESS_IDENTITY_H_
#define HEARTH_SERVICES_SERVING_ACCESS_IDENTITY_H_

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
#include "cache_store/base/repeating_thread.h"
#include "proto/fingerprint.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace hearth {

inline constexpr char kDefaultTenant[] = "default";

enum class Role {
  kAnonymous,  // no identities are asked for
  kTenant,     // sees and names its own tenant only
  kWorker,     // asserts the tenant that it authenticated itself
  kAdmin,      // any tenant
};

struct Identity {
  std::string name;
  Role role = Role::kAnonymous;
  std::string tenant = kDefaultTenant;  // its own
  // Read beside any tenant's own prefixes; empty: there is none.
  std::string public_tenant;
  bool publishes_public = false;  // may publish to it, as to its own tenant

  // The tenant a request is about. Empty: the caller's own. kPermissionDenied for one that this
  // caller may not name, kInvalidArgument for an invalid name.
  absl::StatusOr<std::string> TenantOf(const std::string& asserted) const;
  // Whether it may be told the tokens of a tenant that it may name. Operators work on others' data
  // without reading it.
  bool ReadsPromptsOf(const std::string& named) const {
    return role != Role::kAdmin || named == tenant;
  }
  // The name under which it takes turns: a worker has one, whatever tenants it names.
  const std::string& ShareName() const { return sees_all() ? name : tenant; }
  // Whether it may see figures and memory of all tenants together.
  bool sees_all() const { return role != Role::kTenant; }
  bool operator==(const Identity& other) const {
    return name == other.name && role == other.role && tenant == other.tenant &&
           public_tenant == other.public_tenant && publishes_public == other.publishes_public;
  }
};

// kInvalidArgument for an invalid name.
absl::Status CheckTenantName(const std::string& tenant);

// An entry of the identities file, with the digest of a token, or a certificate's name, or both.
struct IdentityEntry {
  Identity identity;
  std::optional<Digest> token_digest;
  std::string certificate;  // empty: none
};

// Parses the text of --identities-file (docs/security.md has the format). kInvalidArgument names
// `file`, the entry and what to do.
absl::StatusOr<std::vector<IdentityEntry>> ParseIdentities(const std::string& file,
                                                           const std::string& text);

// The token of "authorization: Bearer TOKEN"; empty for any other scheme.
std::string BearerToken(absl::string_view header);

// A caller's proofs of who it is.
struct Credentials {
  std::vector<std::string> certificate_names;  // common name and alternative names; verified
  std::optional<std::string> token;            // empty: a header without one; matches nobody
};

class Identities {
 public:
  struct Options {
    std::string file;           // empty: none
    bool certificates = false;  // a client certificate without an entry is its own tenant
    absl::Duration recheck = absl::Seconds(1);  // how often the file is looked at; 0: at each call
  };

  // All callers are Role::kAnonymous when `options` name neither. The error names file, entry and
  // what to do.
  static absl::StatusOr<std::unique_ptr<Identities>> Open(const Options& options);

  // kUnauthenticated without saying which part was wrong.
  absl::StatusOr<Identity> Identify(const Credentials& credentials);
  bool has_tokens() const;
  // All callers are Role::kAnonymous.
  bool accepts_anyone() const { return options_.file.empty() && !options_.certificates; }
  // Reads the file whether or not it changed.
  void Reload() ABSL_LOCKS_EXCLUDED(loading_, mutex_);
  // Whether these are still the credentials of `was`: kUnauthenticated when nobody has them any
  // more, kPermissionDenied when another has. To be asked again with each generation, the number of
  // times that the file was taken.
  absl::Status CheckStillIs(const Credentials& credentials, const Identity& was);
  uint64_t generation() const ABSL_LOCKS_EXCLUDED(mutex_);
  static Credentials CredentialsOf(const grpc::ServerContextBase& context);

 private:
  using Entries = std::shared_ptr<const std::vector<IdentityEntry>>;

  explicit Identities(Options options) : options_(std::move(options)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loading_) ABSL_LOCKS_EXCLUDED(mutex_);
  // `logs_again`: also an error that is the last one.
  void LoadAndLog(bool logs_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loading_);
  void Refresh() ABSL_LOCKS_EXCLUDED(loading_, mutex_);
  Entries Current() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Identity> IdentifyAmong(const std::vector<IdentityEntry>& entries,
                                         const Credentials& credentials) const;

  const Options options_;
  // While the file is read: SIGHUP and the refresh read one after the other. Before mutex_.
  absl::Mutex loading_;
  std::string stamp_ ABSL_GUARDED_BY(loading_);  // of the file that was read last
  absl::Status last_ ABSL_GUARDED_BY(loading_);  // of the last reading
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_) = std::make_shared<std::vector<IdentityEntry>>();
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<RepeatingThread> refresher_;  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_IDENTITY_H_
