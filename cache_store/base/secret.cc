#include "cache_store/base/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"
#include "proto/fingerprint.h"

namespace hearth {
namespace {

absl::Status Failed(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("secret file ", path, ": ", what));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Syncs the folder that contains `path`, so that new file names survive a crash. Returns false on
// an error.
bool SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  File file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return file.fd() >= 0 && fsync(file.fd()) == 0;
}

}  // namespace

absl::StatusOr<std::string> MakeSecret() {
  std::string secret(kSecretBytes, '\0');
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return absl::InternalError(absl::StrCat("getrandom: ", strerror(errno)));
  }
  return secret;
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  File file(open(path.c_str(),
                 // O_NONBLOCK: opening a pipe would wait for a writer
                 O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) return Failed(path, strerror(errno));
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) return Failed(path, strerror(errno));
  if (!S_ISREG(info.st_mode)) {
    return Failed(path, absl::StrCat("must be a regular file; it is ", FileKind(info.st_mode)));
  }
  // Reading by the group is allowed, because Kubernetes mounts secrets group-readable for fsGroup.
  if ((info.st_mode & S_IRWXO) != 0) return Failed(path, "other users can read it; chmod 0600");
  char text[2 * kSecretBytes + 16];
  const ssize_t got = read(file.fd(), text, sizeof(text));
  if (got < 0) return Failed(path, strerror(errno));
  const absl::string_view hex =
      absl::StripAsciiWhitespace(absl::string_view(text, static_cast<size_t>(got)));
  if (hex.size() != 2 * kSecretBytes) return Failed(path, "must hold 64 hex digits");
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return Failed(path, "must hold 64 hex digits");
    }
  }
  return absl::HexStringToBytes(hex);
}

absl::Status CopySecret(const std::string& secret, const std::string& path) {
  // Write a temporary file, sync it, and link it into place. link() never overwrites: if two
  // processes do this at once, one of them creates the secret and both read it.
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  {
    File file(mkostemp(temporary.data(), O_CLOEXEC));  // creates the file with mode 0600
    if (file.fd() < 0) return Failed(temporary, strerror(errno));
    if (!WriteAll(file.fd(), absl::BytesToHexString(secret) + "\n") || fsync(file.fd()) != 0) {
      unlink(temporary.c_str());
      return Failed(temporary, strerror(errno));
    }
  }
  const int linked = link(temporary.c_str(), path.c_str());
  const int error = errno;
  unlink(temporary.c_str());
  if (linked != 0 && error != EEXIST) return Failed(path, strerror(error));
  if (!SyncFolderOf(path)) return Failed(path, strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadOrMakeSecret(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return ReadSecret(path);
  absl::StatusOr<std::string> secret = MakeSecret();
  if (!secret.ok()) return secret;
  if (absl::Status made = CopySecret(*secret, path); !made.ok()) return made;
  return ReadSecret(path);
}

std::string SecretCheck(const std::string& secret) {
  return DigestHex(Sha256(absl::StrCat("hearth.secret_check.v1", secret)));
}

}  // namespace hearth
