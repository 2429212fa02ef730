// Identities: authenticates callers, and decides which tenants' data a caller may name.
//
// A caller authenticates with a bearer token ("authorization: Bearer ..." in the call's metadata)
// or with a client certificate that the TLS handshake verified. If a token is sent, it must be
// right, with or without a certificate. A proxy authenticates callers itself and names the tenant
// of each call in the header x-hearth-tenant, which is ignored from other peers. The file of
// --identities-file holds each caller's permissions (docs/security.md). Without this file and
// without a client CA there is one tenant, `default`, and callers are not authenticated.
// Thread safety: all methods from any thread.
// Invariants: (1) the file holds digests of tokens, never tokens; (2) a caller with role `tenant`
// gets its own tenant or an error; (3) comparing tokens takes the same time for all of them; (4) a
// changed file is read again; an invalid file changes nothing and is logged once; (5) only callers
// with the permission `publishes_public` write the public namespace, whatever their role.
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
// Header, and metadata key, in which a proxy names the tenant of a call.
inline constexpr char kTenantHeader[] = "x-hearth-tenant";

enum class Role {
  kAnonymous,  // callers are not authenticated
  kTenant,     // sees and names its own tenant only
  kWorker,     // may name any tenant whose caller it has authenticated
  kAdmin,      // may name any tenant
  kProxy,      // names the tenant of each call; only in entries, its calls have kTenant
};

struct Identity {
  std::string name;
  Role role = Role::kAnonymous;
  std::string tenant = kDefaultTenant;  // the caller's own tenant
  // Tenant whose prefixes every tenant reads in addition to its own; empty: none.
  std::string public_tenant;
  bool publishes_public = false;  // may also publish as `public_tenant`

  // Returns the tenant of a request that names the tenant `asserted`; empty: the caller's own
  // tenant. kPermissionDenied if the caller may not name it, kInvalidArgument if the name is
  // invalid.
  absl::StatusOr<std::string> TenantOf(const std::string& asserted) const;
  // Whether the caller may read the tokens of the tenant `named`. Administrators manage other
  // tenants' data without reading it.
  bool ReadsPromptsOf(const std::string& named) const {
    return role != Role::kAdmin || named == tenant;
  }
  // Returns the name by which the caller takes turns in pools: its tenant. For a worker or an
  // administrator it is the caller's name, whatever tenants the caller names.
  const std::string& ShareName() const { return sees_all() ? name : tenant; }
  // Whether the caller may see statistics and memory of all tenants together.
  bool sees_all() const { return role != Role::kTenant; }
  bool operator==(const Identity& other) const {
    return name == other.name && role == other.role && tenant == other.tenant &&
           public_tenant == other.public_tenant && publishes_public == other.publishes_public;
  }
};

// kInvalidArgument if `tenant` is not a valid tenant name.
absl::Status CheckTenantName(const std::string& tenant);

// An entry of the identities file. It has the digest of a token, the name in a certificate, or
// both.
struct IdentityEntry {
  Identity identity;
  std::optional<Digest> token_digest;
  std::string certificate;  // name in the client certificate; empty: none
};

// Parses the text of --identities-file (docs/security.md has the format). kInvalidArgument names
// `file`, the entry and what to do.
absl::StatusOr<std::vector<IdentityEntry>> ParseIdentities(const std::string& file,
                                                           const std::string& text);

// Returns the token of the header "authorization: Bearer TOKEN"; empty for any other scheme.
std::string BearerToken(absl::string_view header);

// The credentials that a call carries.
struct Credentials {
  // common name and alternative names of the verified certificate
  std::vector<std::string> certificate_names;
  // nullopt: no header; empty: a header without a token, which never matches
  std::optional<std::string> token;
  std::string tenant = {};  // value of the header kTenantHeader; empty: none, or two
};

class Identities {
 public:
  struct Options {
    std::string file;  // identities file; empty: none
    // accept client certificates; without a file, the name is the tenant
    bool certificates = false;
    absl::Duration recheck =
        absl::Seconds(1);  // period of the checks for a changed file; 0: at each call
  };

  // Reads the identities file. If `options` have neither a file nor certificates, all callers get
  // Role::kAnonymous. An error names the file, the entry and what to do.
  static absl::StatusOr<std::unique_ptr<Identities>> Open(const Options& options);

  // Returns the caller's identity. kUnauthenticated does not say which credential was wrong.
  absl::StatusOr<Identity> Identify(const Credentials& credentials);
  bool has_tokens() const;
  bool has_admin_token() const;  // whether an entry with Role::kAdmin has a token
  // Whether all callers are Role::kAnonymous.
  bool accepts_anyone() const { return options_.file.empty() && !options_.certificates; }
  // Reads the file again, even if it has not changed.
  void Reload() ABSL_LOCKS_EXCLUDED(loading_, mutex_);
  // Checks that `credentials` still have the identity `was`. kUnauthenticated if no entry has the
  // credentials any more; kPermissionDenied if the entry has changed or another entry has them.
  // Call again whenever generation(), the number of times that the file was loaded, has changed.
  absl::Status CheckStillIs(const Credentials& credentials, const Identity& was);
  uint64_t generation() const ABSL_LOCKS_EXCLUDED(mutex_);
  static Credentials CredentialsOf(const grpc::ServerContextBase& context);

 private:
  using Entries = std::shared_ptr<const std::vector<IdentityEntry>>;

  explicit Identities(Options options) : options_(std::move(options)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(loading_) ABSL_LOCKS_EXCLUDED(mutex_);
  // `logs_again`: logs an error even if it equals the last one.
  void LoadAndLog(bool logs_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(loading_);
  void Refresh() ABSL_LOCKS_EXCLUDED(loading_, mutex_);
  Entries Current() const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Identity> IdentifyAmong(const std::vector<IdentityEntry>& entries,
                                         const Credentials& credentials) const;

  const Options options_;
  // Held while the file is read, so that only one thread reads it. Lock order: before mutex_.
  absl::Mutex loading_;
  std::string stamp_ ABSL_GUARDED_BY(loading_);  // version of the file that was read last
  absl::Status last_ ABSL_GUARDED_BY(loading_);  // result of the last load
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_) = std::make_shared<std::vector<IdentityEntry>>();
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<RepeatingThread> refresher_;  // last member: its thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_IDENTITY_H_
