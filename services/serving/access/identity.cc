#include "services/serving/access/identity.h"

#include <grpcpp/server_context.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"
#include "cache_store/base/tenant_accounts.h"
#include "services/serving/json_reader.h"
#include "services/serving/json_value.h"
#include "services/serving/logging.h"

namespace hearth {

namespace {

// Returns `error` with the name of the file in front.
absl::Status In(const std::string& file, const absl::Status& error) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", error.message()));
}

// Returns the text of a field, which must not be empty.
absl::StatusOr<std::string> TextOf(JsonValue value) {
  const absl::StatusOr<absl::string_view> text = value.Text();
  if (!text.ok() || text->empty()) return value.Bad("text");
  return std::string(*text);
}

absl::StatusOr<Role> RoleFrom(const std::string& text, const std::string& where) {
  if (text == "tenant") return Role::kTenant;
  if (text == "worker") return Role::kWorker;
  if (text == "admin") return Role::kAdmin;
  if (text == "proxy") return Role::kProxy;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ".role: must be tenant, worker, admin or proxy; got ", Quoted(text)));
}

// Parses one file, and remembers the values that must be unique in it.
struct Parser {
  absl::StatusOr<std::vector<IdentityEntry>> Parse(const std::string& text);
  absl::StatusOr<IdentityEntry> ParseEntry(JsonValue item, const std::string& where);

  const std::string file;
  std::string public_tenant;
  std::set<std::string> names, certificates;
  std::set<Digest> tokens;
};

absl::StatusOr<std::vector<IdentityEntry>> Parser::Parse(const std::string& text) {
  JsonLimits limits;
  limits.keys = kMaxFileKeys;
  const absl::StatusOr<JsonDocument> json = JsonDocument::Parse(text, "the file", limits);
  if (!json.ok()) return In(file, json.status());
  const JsonValue root = json->root();
  const std::optional<JsonValue> list = root.Find("identities");
  if (!list.has_value() || !list->is_list()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": must be a JSON object {\"identities\": [...]}"));
  }
  for (const JsonValue field : root.fields()) {
    if (field.name() == "identities") continue;
    if (field.name() != "public_tenant") {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", Quoted(field.name()),
                       " is an unknown key; known keys: \"identities\" and \"public_tenant\""));
    }
    const absl::StatusOr<std::string> shared = TextOf(field);
    const absl::Status fine = shared.ok() ? CheckTenantName(*shared) : shared.status();
    if (!fine.ok()) return In(file, fine);
    public_tenant = *shared;
  }
  std::vector<IdentityEntry> entries;
  for (const JsonValue item : list->elements()) {
    const std::string where = absl::StrCat(file, ": identities[", entries.size(), "]");
    absl::StatusOr<IdentityEntry> entry = ParseEntry(item, where);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  return entries;
}

absl::StatusOr<IdentityEntry> Parser::ParseEntry(JsonValue item, const std::string& where) {
  static const std::set<std::string> kKeys = {"name", "role", "tenant", "token_sha256",
                                              "certificate"};
  const auto refuse = [&where](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(where, why));
  };
  if (!item.is_object()) return refuse(": must be an object");
  std::map<std::string, std::string> fields;
  IdentityEntry entry;
  Identity& identity = entry.identity;
  for (const JsonValue field : item.fields()) {
    const std::string key(field.name());
    if (key == "publishes_public") {
      const absl::StatusOr<bool> publishes = field.Bool();
      if (!publishes.ok()) return In(file, publishes.status());
      identity.publishes_public = *publishes;
      continue;
    }
    if (kKeys.count(key) == 0) return refuse(absl::StrCat(": unknown key ", Quoted(key)));
    absl::StatusOr<std::string> text = TextOf(field);
    if (!text.ok()) return In(file, text.status());
    fields[key] = *std::move(text);
  }
  identity.name = fields["name"];
  identity.public_tenant = public_tenant;
  if (identity.name.empty() || !names.insert(identity.name).second) {
    return refuse(".name: must be given, and unique in the file");
  }
  absl::StatusOr<Role> role = RoleFrom(fields["role"], where);
  if (!role.ok()) return role.status();
  identity.role = *role;
  if (*role == Role::kTenant) identity.tenant = identity.name;
  if (!fields["tenant"].empty()) identity.tenant = fields["tenant"];
  if (absl::Status status = CheckTenantName(identity.tenant); !status.ok()) {
    return refuse(absl::StrCat(": ", status.message()));
  }
  if (identity.publishes_public && public_tenant.empty()) {
    return refuse(".publishes_public: the file has no \"public_tenant\"; add one");
  }
  if (identity.tenant == public_tenant && !identity.publishes_public) {
    return refuse(": needs \"publishes_public\": true, because its tenant is the public tenant");
  }
  entry.certificate = fields["certificate"];
  if (!entry.certificate.empty() && !certificates.insert(entry.certificate).second) {
    return refuse(".certificate: must be unique; another entry has the same");
  }
  if (identity.role == Role::kProxy &&
      (entry.certificate.empty() || !fields["token_sha256"].empty())) {
    return refuse(": a proxy needs a certificate, and must not have token_sha256");
  }
  if (!fields["token_sha256"].empty()) {
    absl::StatusOr<Digest> digest = DigestFromHex(fields["token_sha256"]);
    if (!digest.ok()) {
      return refuse(".token_sha256: must be 64 hex digits, as printf %s TOKEN | sha256sum gives");
    }
    if (*digest == Sha256("")) {
      return refuse(
          ".token_sha256: is the digest of an empty token, as sha256sum gives for a missing or "
          "empty file; make the token first: head -c 32 /dev/urandom | base64 > token");
    }
    if (!tokens.insert(*digest).second) {
      return refuse(".token_sha256: must be unique; another entry has the same");
    }
    entry.token_digest = *digest;
  }
  if (entry.certificate.empty() && !entry.token_digest.has_value()) {
    return refuse(": needs token_sha256 or certificate");
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<IdentityEntry>> ParseIdentities(const std::string& file,
                                                           const std::string& text) {
  return Parser{file, {}, {}, {}, {}}.Parse(text);
}

namespace {

constexpr size_t kMaxTenantBytes = 256;
constexpr size_t kMaxFileBytes = 16 << 20;

absl::Status Unauthenticated() {
  return absl::UnauthenticatedError(
      "no valid identity: send \"authorization: Bearer TOKEN\" or a client certificate that the "
      "server knows");
}

// Returns the identity of a call that a proxy passes on for the tenant `asserted`. Only a proxy
// that may publish to the public namespace may name the public tenant.
absl::StatusOr<Identity> PassedOn(const Identity& proxy, const std::string& asserted) {
  Identity identity = proxy;
  identity.role = Role::kTenant;
  identity.tenant = asserted;
  const bool is_public = asserted == proxy.public_tenant;
  identity.publishes_public = proxy.publishes_public && is_public;
  if (CheckTenantName(asserted).ok() && (!is_public || proxy.publishes_public)) return identity;
  return absl::UnauthenticatedError(absl::StrCat(
      kTenantHeader, ": must be one tenant that the proxy \"", proxy.name, "\" may name"));
}

}  // namespace

std::string BearerToken(absl::string_view header) {
  constexpr absl::string_view kScheme = "bearer";
  if (!absl::StartsWithIgnoreCase(header, kScheme)) return "";
  const absl::string_view rest = header.substr(kScheme.size());
  const absl::string_view token = absl::StripLeadingAsciiWhitespace(rest);
  return token.size() == rest.size() ? "" : std::string(token);
}

absl::Status CheckTenantName(const std::string& tenant) {
  const bool plain = std::all_of(tenant.begin(), tenant.end(),
                                 [](unsigned char c) { return c > 0x20 && c != 0x7f; });
  if (tenant == kAllTenants) {
    return absl::InvalidArgumentError(
        "tenant: must be the name of one tenant; \"*\" means all tenants, and only List accepts "
        "it");
  }
  if (plain && !tenant.empty() && tenant.size() <= kMaxTenantBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tenant: a name must have 1 to ", kMaxTenantBytes,
                                                 " bytes, without spaces or control characters"));
}

absl::StatusOr<std::string> Identity::TenantOf(const std::string& asserted) const {
  if (asserted.empty() || asserted == tenant) return tenant;
  if (role == Role::kAnonymous) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted,
                     "\" asserted by a peer without an identity; this store has only the tenant \"",
                     kDefaultTenant, "\""));
  }
  const bool is_public = !public_tenant.empty() && asserted == public_tenant;
  if (is_public && publishes_public) return asserted;
  if (role == Role::kTenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted, "\" asserted by \"", name, "\", whose tenant is \"",
                     tenant, "\"; only the roles worker and admin may name another tenant"));
  }
  if (is_public) {
    return absl::PermissionDeniedError(
        absl::StrCat("tenant: \"", asserted, "\" is the public namespace; to name it, \"", name,
                     "\" needs \"publishes_public\": true in its entry"));
  }
  if (absl::Status status = CheckTenantName(asserted); !status.ok()) return status;
  return asserted;
}

absl::StatusOr<std::unique_ptr<Identities>> Identities::Open(const Options& options) {
  std::unique_ptr<Identities> identities(new Identities(options));
  {
    absl::MutexLock lock(&identities->loading_);
    if (absl::Status status = identities->Load(); !status.ok()) return status;
  }
  if (!options.file.empty() && options.recheck > absl::ZeroDuration()) {
    identities->refresher_ = std::make_unique<RepeatingThread>([raw = identities.get()] {
      raw->Refresh();
      return raw->options_.recheck;
    });
  }
  return identities;
}

absl::Status Identities::Load() {
  loading_.AssertHeld();
  if (options_.file.empty()) return absl::OkStatus();
  // Store the stamp of an invalid file too, so that the file is read only once.
  stamp_ = FileStampOf(options_.file);
  const absl::StatusOr<std::string> text = ReadBoundedFile(options_.file, kMaxFileBytes);
  if (!text.ok()) {
    stamp_.clear();  // read again at the next check: the file may become readable without a change
    return text.status();
  }
  absl::StatusOr<std::vector<IdentityEntry>> entries = ParseIdentities(options_.file, *text);
  if (!entries.ok()) return entries.status();
  absl::MutexLock lock(&mutex_);
  entries_ = std::make_shared<std::vector<IdentityEntry>>(*std::move(entries));
  ++generation_;
  return absl::OkStatus();
}

void Identities::Refresh() {
  absl::MutexLock lock(&loading_);
  if (FileStampOf(options_.file) != stamp_) LoadAndLog(/*logs_again=*/false);
}

void Identities::Reload() {
  absl::MutexLock lock(&loading_);
  if (!options_.file.empty()) LoadAndLog(/*logs_again=*/true);
}

void Identities::LoadAndLog(bool logs_again) {
  loading_.AssertHeld();
  const absl::Status status = Load();
  if (std::exchange(last_, status) == status && !status.ok() && !logs_again) return;
  if (!status.ok()) {
    return Log(LogLevel::kError, "reloading the identities failed; keeping the previous ones",
               {{"reason", std::string(status.message())}});
  }
  Log(LogLevel::kInfo, "identities reloaded", {{"file", options_.file}});
}

Identities::Entries Identities::Current() const {
  absl::MutexLock lock(&mutex_);
  return entries_;
}

absl::Status Identities::CheckStillIs(const Credentials& credentials, const Identity& was) {
  const absl::StatusOr<Identity> is = Identify(credentials);
  if (!is.ok()) return is.status();
  if (*is == was) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "\"", was.name, "\" changed in the server's identities file during this call; call again"));
}

uint64_t Identities::generation() const {
  absl::MutexLock lock(&mutex_);
  return generation_;
}

bool Identities::has_tokens() const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(entries_->begin(), entries_->end(),
                     [](const IdentityEntry& entry) { return entry.token_digest.has_value(); });
}

bool Identities::has_admin_token() const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(entries_->begin(), entries_->end(), [](const IdentityEntry& entry) {
    return entry.token_digest.has_value() && entry.identity.role == Role::kAdmin;
  });
}

absl::StatusOr<Identity> Identities::Identify(const Credentials& credentials) {
  if (accepts_anyone()) return Identity();
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
    if (found != nullptr) return Unauthenticated();  // two entries match: accept neither of them
    found = &entry;
  }
  if (found != nullptr && found->identity.role == Role::kProxy) {
    return PassedOn(found->identity, credentials.tenant);
  }
  if (found != nullptr) return found->identity;
  if (!options_.certificates || !options_.file.empty() || credentials.certificate_names.empty()) {
    return Unauthenticated();
  }
  // Without an identities file, the certificate's first name is the tenant.
  Identity identity{credentials.certificate_names[0], Role::kTenant,
                    credentials.certificate_names[0], ""};
  if (!CheckTenantName(identity.tenant).ok()) return Unauthenticated();
  return identity;
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
    const bool is_second = credentials.token.has_value();  // two authorization headers: reject both
    credentials.token = is_second ? "" : BearerToken({it->second.data(), it->second.size()});
    if (is_second) break;
  }
  if (metadata.count(kTenantHeader) == 1) {
    const grpc::string_ref tenant = metadata.find(kTenantHeader)->second;
    credentials.tenant.assign(tenant.data(), tenant.size());
  }
  return credentials;
}

}  // namespace hearth
