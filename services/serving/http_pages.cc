#include "services/serving/http_pages.h"

#include <civetweb.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// A scraper and a few people; a client that stalls gives its thread back after the timeout.
constexpr char kThreads[] = "3";
constexpr char kRequestTimeoutMs[] = "10000";

void Answer(mg_connection* connection, const char* status, const std::string& content_type,
            const std::string& body, bool head_only) {
  const std::string header = absl::StrCat(
      "HTTP/1.1 ", status, "\r\nContent-Type: ", content_type, "\r\nContent-Length: ", body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n");
  mg_write(connection, header.data(), header.size());
  if (!head_only) mg_write(connection, body.data(), body.size());
}

}  // namespace

struct HttpPages::Rep {
  std::map<std::string, HttpPage> pages;
  std::string error;  // what the library said while starting, on one thread
  std::atomic<bool> started{false};
  mg_context* context = nullptr;

  static int Log(const mg_connection* connection, const char* message) {
    auto* rep = static_cast<Rep*>(mg_get_user_data(mg_get_context(connection)));
    if (!rep->started.load()) rep->error = message;
    return 1;
  }
  static int Handle(mg_connection* connection, void* data) {
    const auto* rep = static_cast<const Rep*>(data);
    const mg_request_info* request = mg_get_request_info(connection);
    const bool head = std::strcmp(request->request_method, "HEAD") == 0;
    if (!head && std::strcmp(request->request_method, "GET") != 0) {
      Answer(connection, "405 Method Not Allowed", "text/plain", "GET and HEAD only\n", false);
      return 405;
    }
    const auto page = rep->pages.find(request->local_uri);
    if (page == rep->pages.end()) {
      Answer(connection, "404 Not Found", "text/plain", "no such page\n", head);
      return 404;
    }
    Answer(connection, "200 OK", page->second.content_type, page->second.make(), head);
    return 200;
  }
};

absl::StatusOr<std::unique_ptr<HttpPages>> HttpPages::Serve(const std::string& address,
                                                            std::map<std::string, HttpPage> pages) {
  auto rep = std::make_unique<Rep>();
  rep->pages = std::move(pages);
  mg_callbacks callbacks = {};
  callbacks.log_message = Rep::Log;
  const char* options[] = {"listening_ports",    address.c_str(),   "num_threads", kThreads,
                           "request_timeout_ms", kRequestTimeoutMs, nullptr};
  mg_context* context = mg_start(&callbacks, rep.get(), options);
  if (context == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("metrics-listen: cannot listen on ", address, ": ", rep->error));
  }
  rep->context = context;
  rep->started = true;
  mg_set_request_handler(context, "/", Rep::Handle, rep.get());
  mg_server_port port = {};
  mg_get_server_ports(context, 1, &port);
  auto server = std::unique_ptr<HttpPages>(new HttpPages(std::move(rep)));
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port.port);
  return server;
}

HttpPages::HttpPages(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
HttpPages::~HttpPages() { mg_stop(rep_->context); }

}  // namespace hearth
