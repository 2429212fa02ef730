#include "services/serving/access/listeners.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace hearth {

void SetOn(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof(on));
}

absl::Status CannotListen(const std::string& listen, const std::string& hint,
                          const std::string& why) {
  return absl::UnavailableError(
      absl::StrCat("listen: cannot listen on ", listen, hint, " (", why, ")"));
}

Listeners::~Listeners() {
  for (const int fd : fds_) close(fd);
  struct stat now {};
  const bool is_ours = is_local() && lstat(path_.c_str(), &now) == 0 && now.st_dev == device_ &&
                       now.st_ino == inode_;
  if (is_ours) unlink(path_.c_str());
}

absl::Status Listeners::Open() {
  absl::string_view path = listen_;
  if (absl::ConsumePrefix(&path, "unix:")) {
    // The URI form "unix://PATH" is accepted too.
    if (absl::StartsWith(path, "//")) path.remove_prefix(2);
    return OpenLocal(std::string(path));
  }
  const size_t colon = listen_.rfind(':');
  if (colon == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat("listen: ", listen_, " is not an address; write HOST:PORT or unix:PATH"));
  }
  std::string host = listen_.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  return OpenTcp(host, listen_.substr(colon + 1));
}

absl::Status Listeners::Check() {
  if (absl::StartsWith(listen_, "unix:") || absl::EndsWith(listen_, ":0")) return absl::OkStatus();
  only_checks_ = true;
  return Open();
}

absl::Status Listeners::Fail(const std::string& why) const {
  return CannotListen(listen_, "; check that the address is local and the port free", why);
}

absl::Status Listeners::OpenLocal(const std::string& path) {
  const auto fail = [&](const std::string& why) {
    return CannotListen(listen_, "; check that the folder exists and is writable", why);
  };
  sockaddr_un address;
  std::memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return fail(absl::StrCat("the path must have 1 to ", sizeof(address.sun_path) - 1, " bytes"));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  struct stat there {};
  if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(std::strerror(errno));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, SOMAXCONN) != 0 || lstat(path.c_str(), &there) != 0) {
    const std::string why = std::strerror(errno);
    close(fd);
    return fail(why);
  }
  path_ = path;
  device_ = there.st_dev;
  inode_ = there.st_ino;
  fds_.push_back(fd);
  return absl::OkStatus();
}

absl::Status Listeners::OpenTcp(const std::string& host, const std::string& port) {
  if (int number = 0; !absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return Fail(absl::StrCat("\"", port, "\" is not a port"));
  }
  // An empty host listens on every address: IPv6 and IPv4, if the machine has both.
  const bool is_any = host.empty() || host == "0.0.0.0" || host == "::";
  addrinfo hints;
  std::memset(&hints, 0, sizeof(hints));
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  absl::Status last = absl::UnavailableError("the host name has no address");
  for (const char* name : {is_any ? "::" : host.c_str(), is_any ? "0.0.0.0" : ""}) {
    if (*name == '\0' || !fds_.empty() || absl::IsAlreadyExists(last)) break;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(name, port.c_str(), &hints, &found); error != 0) {
      last = absl::UnavailableError(gai_strerror(error));
      continue;
    }
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      const absl::Status status = ListenOn(at->ai_family, at->ai_addr, at->ai_addrlen);
      if (!status.ok()) last = status;
    }
    freeaddrinfo(found);
  }
  return fds_.empty() ? Fail(std::string(last.message())) : absl::OkStatus();
}

absl::Status Listeners::ListenOn(int family, const void* address, size_t address_bytes) {
  sockaddr_storage storage;
  std::memset(&storage, 0, sizeof(storage));
  std::memcpy(&storage, address, std::min(address_bytes, sizeof(storage)));
  // If a host name has several addresses and the port is 0, the free port of the first address is
  // used for all of them.
  auto& at_port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                     : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  if (at_port == 0) at_port = htons(static_cast<uint16_t>(port_));
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  SetOn(fd, SOL_SOCKET, SO_REUSEADDR);
  if (family == AF_INET6) {
    const int only = 0;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  socklen_t bytes = sizeof(storage);
  if (bind(fd, reinterpret_cast<sockaddr*>(&storage), static_cast<socklen_t>(address_bytes)) != 0 ||
      (!only_checks_ && listen(fd, SOMAXCONN) != 0) ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) {
    const bool is_taken = errno == EADDRINUSE;
    const std::string why = std::strerror(errno);
    close(fd);
    return is_taken ? absl::AlreadyExistsError(why) : absl::UnavailableError(why);
  }
  port_ = ntohs(at_port);
  fds_.push_back(fd);
  return absl::OkStatus();
}

}  // namespace hearth
