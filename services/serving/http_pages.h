// HttpPages: a few read-only pages over HTTP, made for each request.
//
// GET and HEAD only; any other method or path is an error. Pages must not be framed or cached, and
// load nothing from elsewhere.
// Thread safety: pages are made on the server's threads, several at a time.
// Ownership: the data that pages read must outlive the server.
#ifndef HEARTH_SERVICES_SERVING_HTTP_PAGES_H_
#define HEARTH_SERVICES_SERVING_HTTP_PAGES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hearth {

struct HttpPage {
  std::string content_type;
  std::function<std::string()> make;
};

class HttpPages {
 public:
  // Serves on "host:port"; port 0 lets the system choose. kUnavailable names the address.
  static absl::StatusOr<std::unique_ptr<HttpPages>> Serve(const std::string& address,
                                                          std::map<std::string, HttpPage> pages);
  ~HttpPages();  // returns when no page is being made

  const std::string& address() const { return address_; }

 private:
  struct Rep;
  explicit HttpPages(std::unique_ptr<Rep> rep);
  const std::unique_ptr<Rep> rep_;
  std::string address_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_PAGES_H_
