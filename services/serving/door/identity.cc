#include "services/serving/door/identity.h"

#include <grpcpp/server_context.h>
#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/rpc/access_files.h"
#include "services/serving/door/identities_file.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

constexpr size_t kMaxTenantBytes = 256;
constexpr size_t kMaxFileBytes = 16 << 20;

absl::Status Unauthenticated() {
  return absl::UnauthenticatedError(
      "no valid identity: send \"authorization: Bearer TOKEN\" or a client certificate that the "
      "server knows");
}

// The token of "authorization: Bearer TOKEN"; empty for any other scheme, and where there is none.
std::string BearerToken(absl::string_view header) {
  constexpr absl::string_view kScheme = "bearer";
  if (!absl::StartsWithIgnoreCase(header, kScheme)) return "";
  const absl::string_view rest = header.substr(kScheme.size());
  absl::string_view token = rest;
  while (absl::ConsumePrefix(&token, " ")) {
  }
  return token.size() == rest.size() ? "" : std::string(token);
}

}  // namespace

absl::Status CheckTenantName(const std::string& tenant) {
  const bool plain = std::all_of(tenant.begin(), tenant.end(),
                                 [](unsigned char c) { return c > 0x20 && c != 0x7f; });
  if (plain && !tenant.empty() && tenant.size() <= kMaxTenantBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tenant: a name has 1 to ", kMaxTenantBytes,
                                                 " bytes, without spaces or control characters"));
}

absl::StatusOr<std::string> Identity::TenantOf(const std::string& asserted) const {
  if (asserted.empty() || asserted == tenant) return tenant;
  if (role == Role::kNobody) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted,
                     "\" asserted by a peer without an identity; this store has one tenant, \"",
                     kDefaultTenant, "\""));
  }
  const bool is_public = !public_tenant.empty() && asserted == public_tenant;
  if (is_public && publishes_public) return asserted;
  if (role == Role::kTenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted, "\" asserted by \"", name, "\", whose tenant is \"",
                     tenant, "\"; only the roles worker and admin may name another"));
  }
  if (is_public) {
    return absl::PermissionDeniedError(absl::StrCat(
        "tenant: \"", asserted, "\" is the public namespace, which \"", name,
        "\" reads beside others' but may not name: its entry lacks \"publishes_public\": true"));
  }
  if (absl::Status status = CheckTenantName(asserted); !status.ok()) return status;
  return asserted;
}

absl::StatusOr<std::unique_ptr<Identities>> Identities::Open(const Options& options) {
  std::unique_ptr<Identities> identities(new Identities(options));
  if (absl::Status status = identities->Load(); !status.ok()) return status;
  if (!options.file.empty() && options.recheck > absl::ZeroDuration()) {
    identities->refresher_ = std::make_unique<RepeatingThread>([raw = identities.get()] {
      raw->Refresh();
      return raw->options_.recheck;
    });
  }
  return identities;
}

Identities::FileState Identities::StateOf(const std::string& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return {};
  return {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino),
          static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec};
}

absl::Status Identities::Load() {
  if (options_.file.empty()) return absl::OkStatus();
  const FileState state = StateOf(options_.file);
  uint64_t reading = 0;
  {
    absl::MutexLock lock(&mutex_);
    state_ = state;  // whatever comes of it: the same wrong file is read and logged once
    reading = ++readings_;
  }
  const absl::StatusOr<std::string> text = ReadBoundedFile(options_.file, kMaxFileBytes);
  if (!text.ok()) {
    absl::MutexLock lock(&mutex_);
    state_ = {};  // it may be readable the next time, unchanged
    return text.status();
  }
  absl::StatusOr<std::vector<IdentityEntry>> entries = ParseIdentities(options_.file, *text);
  if (!entries.ok()) return entries.status();
  if (options_.on_parsed) options_.on_parsed();
  absl::MutexLock lock(&mutex_);
  // SIGHUP and the refresh may read at the same time: what began earlier may have read less.
  if (reading != readings_) return absl::OkStatus();
  entries_ = std::make_shared<std::vector<IdentityEntry>>(*std::move(entries));
  return absl::OkStatus();
}

void Identities::Refresh() {
  {
    absl::MutexLock lock(&mutex_);
    if (StateOf(options_.file) == state_) return;
  }
  Reload(/*logs_again=*/false);
}

void Identities::Reload(bool logs_again) {
  if (options_.file.empty()) return;
  const absl::Status status = Load();
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(last_, status) == status && !status.ok() && !logs_again) return;
  }
  if (!status.ok()) {
    return Log(LogLevel::kError, "identities stay as they were",
               {{"reason", std::string(status.message())}});
  }
  Log(LogLevel::kInfo, "identities read anew", {{"file", options_.file}});
  std::vector<std::shared_ptr<Followed>> open;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& weak : followed_) {
      if (auto followed = weak.lock()) open.push_back(std::move(followed));
    }
  }
  for (const auto& followed : open) Check(followed.get());
}

Identities::Entries Identities::Current() const {
  absl::MutexLock lock(&mutex_);
  return entries_;
}

void Identities::Check(Followed* followed) const {
  absl::MutexLock lock(&followed->mutex);
  if (followed->end == nullptr) return;
  const absl::StatusOr<Identity> is = IdentifyAmong(*Current(), followed->credentials);
  if (is.ok() && *is == followed->was) return;
  std::exchange(followed->end,
                nullptr)(is.ok() ? absl::PermissionDeniedError(absl::StrCat(
                                       "\"", followed->was.name,
                                       "\" is another to the server than when this call began: its "
                                       "identities file was changed; call again"))
                                 : is.status());
}

std::shared_ptr<void> Identities::Follow(Credentials credentials, const Identity& was,
                                         EndStream end) {
  if (asks_nobody()) return nullptr;
  const auto followed = std::make_shared<Followed>();
  followed->credentials = std::move(credentials);
  followed->was = was;
  {
    absl::MutexLock lock(&followed->mutex);
    followed->end = std::move(end);
  }
  {
    absl::MutexLock lock(&mutex_);
    followed_.remove_if([](const std::weak_ptr<Followed>& weak) { return weak.expired(); });
    followed_.push_back(followed);
  }
  Check(followed.get());  // the file may have been read between the two
  return std::shared_ptr<void>(followed.get(), [followed](void*) {
    absl::MutexLock lock(&followed->mutex);
    followed->end = nullptr;
  });
}

std::shared_ptr<void> Identities::Follow(const grpc::ServerContextBase& context,
                                         const Identity& was, EndStream end) {
  return Follow(CredentialsOf(context), was, std::move(end));
}

bool Identities::asks_for_tokens() const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(entries_->begin(), entries_->end(),
                     [](const IdentityEntry& entry) { return entry.token_digest.has_value(); });
}

absl::StatusOr<Identity> Identities::Identify(const Credentials& credentials) {
  if (asks_nobody()) return Identity();
  if (refresher_ == nullptr && !options_.file.empty()) Refresh();
  return IdentifyAmong(*Current(), credentials);
}

absl::StatusOr<Identity> Identities::IdentifyAmong(const std::vector<IdentityEntry>& entries,
                                                   const Credentials& credentials) const {
  const IdentityEntry* found = nullptr;
  if (credentials.token.has_value()) {
    if (credentials.token->empty()) return Unauthenticated();
    const Digest digest = Sha256(*credentials.token);
    for (const IdentityEntry& entry : entries) {
      const Digest& other = entry.token_digest.value_or(Digest{});
      const bool equal = CRYPTO_memcmp(digest.data(), other.data(), digest.size()) == 0;
      if (equal && entry.token_digest.has_value()) found = &entry;
    }
    if (found == nullptr) return Unauthenticated();
    return found->identity;
  }
  for (const IdentityEntry& entry : entries) {
    const std::vector<std::string>& names = credentials.certificate_names;
    if (entry.certificate.empty()) continue;
    if (std::find(names.begin(), names.end(), entry.certificate) == names.end()) continue;
    if (found != nullptr) return Unauthenticated();  // of two names, neither is the one
    found = &entry;
  }
  if (found != nullptr) return found->identity;
  if (!options_.certificates || !options_.file.empty() || credentials.certificate_names.empty()) {
    return Unauthenticated();
  }
  // Without a file a certificate's first name is its tenant.
  Identity identity{credentials.certificate_names[0], Role::kTenant,
                    credentials.certificate_names[0], ""};
  if (!CheckTenantName(identity.tenant).ok()) return Unauthenticated();
  return identity;
}

absl::StatusOr<Identity> Identities::Identify(const grpc::ServerContextBase& context) {
  return asks_nobody() ? Identity() : Identify(CredentialsOf(context));
}

Credentials Identities::CredentialsOf(const grpc::ServerContextBase& context) {
  Credentials credentials;
  const auto peer = context.auth_context();
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    for (const char* property : {"x509_common_name", "x509_subject_alternative_name"}) {
      for (const grpc::string_ref& name : peer->FindPropertyValues(property)) {
        credentials.certificate_names.emplace_back(name.data(), name.size());
      }
    }
  }
  const auto& metadata = context.client_metadata();
  const auto sent = metadata.equal_range("authorization");
  for (auto it = sent.first; it != sent.second; ++it) {
    const bool is_second = credentials.token.has_value();  // of two, neither is the one
    credentials.token = is_second ? "" : BearerToken({it->second.data(), it->second.size()});
    if (is_second) break;
  }
  return credentials;
}

absl::StatusOr<Identity> CallerOf(Identities* identities, const grpc::ServerContextBase& context) {
  if (identities == nullptr) return Identity();
  return identities->Identify(context);
}

std::shared_ptr<void> FollowCaller(Identities* identities, const grpc::ServerContextBase& context,
                                   const Identity& was, Identities::EndStream end) {
  if (identities == nullptr) return nullptr;
  return identities->Follow(context, was, std::move(end));
}

}  // namespace hearth
