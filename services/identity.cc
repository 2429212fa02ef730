#include "services/identity.h"

#include <grpcpp/server_context.h>
#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/logging.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTenantBytes = 256;
constexpr size_t kMaxFileBytes = 16 << 20;

absl::Status CheckTenantName(const std::string& tenant) {
  const bool plain = std::all_of(tenant.begin(), tenant.end(),
                                 [](unsigned char c) { return c > 0x20 && c != 0x7f; });
  if (plain && !tenant.empty() && tenant.size() <= kMaxTenantBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tenant: a name has 1 to ", kMaxTenantBytes,
                                                 " bytes, without spaces or control characters"));
}

absl::Status Unauthenticated() {
  return absl::UnauthenticatedError(
      "no valid identity: send \"authorization: Bearer TOKEN\" or a client certificate that the "
      "server knows");
}

// A text field of an entry; empty when absent.
absl::StatusOr<std::string> TextOf(const Json& entry, const char* key, const std::string& where) {
  const auto it = entry.find(key);
  if (it == entry.end()) return std::string();
  if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".", key, ": must be text"));
  }
  return it->get<std::string>();
}

absl::StatusOr<Role> RoleFrom(const std::string& text, const std::string& where) {
  if (text == "tenant") return Role::kTenant;
  if (text == "worker") return Role::kWorker;
  if (text == "admin") return Role::kAdmin;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ".role: \"", text, "\" is not one of tenant, worker, admin"));
}

}  // namespace

absl::StatusOr<std::string> Identity::TenantOf(const std::string& asserted) const {
  if (asserted.empty() || asserted == tenant) return tenant;
  if (role == Role::kNobody) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted,
                     "\" asserted by a peer without an identity; this store has one tenant, \"",
                     kDefaultTenant, "\""));
  }
  if (role == Role::kTenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted, "\" asserted by \"", name, "\", whose tenant is \"",
                     tenant, "\"; only the roles worker and admin may name another"));
  }
  if (absl::Status status = CheckTenantName(asserted); !status.ok()) return status;
  return asserted;
}

absl::StatusOr<std::unique_ptr<Identities>> Identities::Open(const Options& options) {
  std::unique_ptr<Identities> identities(new Identities(options));
  if (absl::Status status = identities->Load(); !status.ok()) return status;
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
  {
    absl::MutexLock lock(&mutex_);
    state_ = state;  // whatever comes of it: the same wrong file is read and logged once
  }
  if (state.bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.file, ": ", state.bytes, " bytes; the limit is ", kMaxFileBytes));
  }
  std::ifstream file(options_.file);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(options_.file, ": cannot be read"));
  absl::StatusOr<std::vector<Entry>> entries = Parse(options_.file, text.str());
  if (!entries.ok()) return entries.status();
  absl::MutexLock lock(&mutex_);
  entries_ = std::make_shared<std::vector<Entry>>(*std::move(entries));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Identities::Entry>> Identities::Parse(const std::string& file,
                                                                 const std::string& text) {
  static const std::set<std::string> kKeys = {"name", "role", "tenant", "token_sha256",
                                              "certificate"};
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.size() != 1 || !json.contains("identities") ||
      !json["identities"].is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": must be a JSON object {\"identities\": [...]}"));
  }
  std::vector<Entry> entries;
  std::set<std::string> names;
  for (const Json& item : json["identities"]) {
    const std::string where = absl::StrCat(file, ": identities[", entries.size(), "]");
    if (!item.is_object()) return absl::InvalidArgumentError(where + ": must be an object");
    std::map<std::string, std::string> fields;
    for (const auto& [key, value] : item.items()) {
      if (kKeys.count(key) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": unknown key \"", key, "\""));
      }
      absl::StatusOr<std::string> field = TextOf(item, key.c_str(), where);
      if (!field.ok()) return field.status();
      fields[key] = *std::move(field);
    }
    Entry entry;
    entry.identity.name = fields["name"];
    if (entry.identity.name.empty() || !names.insert(entry.identity.name).second) {
      return absl::InvalidArgumentError(where + ".name: must be there, and only once in the file");
    }
    absl::StatusOr<Role> role = RoleFrom(fields["role"], where);
    if (!role.ok()) return role.status();
    entry.identity.role = *role;
    if (*role == Role::kTenant) entry.identity.tenant = entry.identity.name;
    if (!fields["tenant"].empty()) entry.identity.tenant = fields["tenant"];
    if (absl::Status status = CheckTenantName(entry.identity.tenant); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", status.message()));
    }
    entry.certificate = fields["certificate"];
    if (!fields["token_sha256"].empty()) {
      absl::StatusOr<Digest> digest = DigestFromHex(fields["token_sha256"]);
      if (!digest.ok()) {
        return absl::InvalidArgumentError(
            where + ".token_sha256: must be 64 hex digits, as printf %s TOKEN | sha256sum gives");
      }
      entry.token_digest = *digest;
    }
    if (entry.certificate.empty() && !entry.token_digest.has_value()) {
      return absl::InvalidArgumentError(where + ": needs token_sha256 or certificate");
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Identities::Entries Identities::Current() {
  if (!options_.file.empty()) {
    bool changed = false;
    {
      absl::MutexLock lock(&mutex_);
      const absl::Time now = absl::Now();
      if (now >= next_check_) {
        next_check_ = now + options_.recheck;
        changed = !(StateOf(options_.file) == state_);
      }
    }
    if (changed) {
      const absl::Status status = Load();
      if (status.ok()) {
        Log(LogLevel::kInfo, "identities read anew", {{"file", options_.file}});
      } else {
        Log(LogLevel::kError, "identities stay as they were",
            {{"reason", std::string(status.message())}});
      }
    }
  }
  absl::MutexLock lock(&mutex_);
  return entries_;
}

bool Identities::asks_for_tokens() const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(entries_->begin(), entries_->end(),
                     [](const Entry& entry) { return entry.token_digest.has_value(); });
}

absl::StatusOr<Identity> Identities::Identify(const Credentials& credentials) {
  if (options_.file.empty() && !options_.certificates) return Identity();
  const Entries entries = Current();
  const Entry* found = nullptr;
  if (credentials.token.has_value()) {
    const Digest digest = Sha256(*credentials.token);
    for (const Entry& entry : *entries) {
      const Digest& other = entry.token_digest.value_or(Digest{});
      const bool equal = CRYPTO_memcmp(digest.data(), other.data(), digest.size()) == 0;
      if (equal && entry.token_digest.has_value()) found = &entry;
    }
    if (found == nullptr) return Unauthenticated();
    return found->identity;
  }
  for (const Entry& entry : *entries) {
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
                    credentials.certificate_names[0]};
  if (!CheckTenantName(identity.tenant).ok()) return Unauthenticated();
  return identity;
}

absl::StatusOr<Identity> Identities::Identify(const grpc::ServerContextBase& context) {
  Credentials credentials;
  const auto peer = context.auth_context();
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    for (const char* property : {"x509_common_name", "x509_subject_alternative_name"}) {
      for (const grpc::string_ref name : peer->FindPropertyValues(property)) {
        credentials.certificate_names.emplace_back(name.data(), name.size());
      }
    }
  }
  const auto& metadata = context.client_metadata();
  const auto sent = metadata.equal_range("authorization");
  for (auto it = sent.first; it != sent.second; ++it) {
    absl::string_view value(it->second.data(), it->second.size());
    if (credentials.token.has_value()) return Unauthenticated();  // of two, neither is the one
    if (!absl::ConsumePrefix(&value, "Bearer ")) value = "";
    credentials.token = std::string(value);
  }
  return Identify(credentials);
}

absl::StatusOr<Identity> CallerOf(Identities* identities, const grpc::ServerContextBase& context) {
  if (identities == nullptr) return Identity();
  return identities->Identify(context);
}

}  // namespace hearth
