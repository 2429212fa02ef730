#include "services/serving/logging.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace hearth {
namespace {

TEST(Logging, WritesFieldsAsKeyValue) {
  EXPECT_EQ(FormatText("ready", {{"address", "127.0.0.1:7080"}, {"took_ms", 41}}),
            "ready address=127.0.0.1:7080 took_ms=41");
}

TEST(Logging, AmbiguousValuesAreQuoted) {
  EXPECT_EQ(
      FormatText("x", {{"a", ""}, {"b", "two words"}, {"c", "q\"uote"}, {"d", "line\nbreak"}}),
      "x a=\"\" b=\"two words\" c=\"q\\\"uote\" d=\"line\\nbreak\"");
}

TEST(Logging, JsonLineKeepsNumbers) {
  const std::string line = FormatJson("2026-01-31T12:00:00.123Z", "info", "ready",
                                      {{"bytes", 12}, {"path", "a\"b\xff"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "info");
  EXPECT_EQ(parsed["bytes"], 12);
  EXPECT_EQ(parsed["path"], "a\"b\xEF\xBF\xBD");
}

TEST(Logging, GrpcHandshakeFailuresAreRecognized) {
  EXPECT_EQ(HandshakeFailure("./src/core/tsi/ssl_transport_security.cc",
                             "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000418:SSL "
                             "routines::tlsv1 alert unknown ca."),
            "SSL_ERROR_SSL: error:0A000418:SSL routines::tlsv1 alert unknown ca.");
  EXPECT_EQ(HandshakeFailure("./src/core/tsi/ssl_transport_security.cc", "Could not load CRL"), "");
  EXPECT_EQ(HandshakeFailure("./src/core/ext/transport/chttp2/server/chttp2_server.cc",
                             "Handshaking failed: UNKNOWN:Handshake read failed"),
            "UNKNOWN:Handshake read failed");
  EXPECT_EQ(HandshakeFailure("elsewhere.cc", "Handshake failed with fatal error"), "");
}

TEST(Logging, GrpcErrorsAreLoggedAtDebug) {
  testing::internal::CaptureStderr();
  SetUpLogging(LogLevel::kDebug, LogFormat::kText);
  gpr_log("a.cc", 1, GPR_LOG_SEVERITY_DEBUG, "of a socket");
  gpr_log("a.cc", 1, GPR_LOG_SEVERITY_INFO, "of a channel");
  gpr_log("a.cc", 1, GPR_LOG_SEVERITY_ERROR, "of a failure");
  SetUpLogging(LogLevel::kInfo, LogFormat::kText);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("of a socket"), said.npos) << said;
  EXPECT_EQ(said.find("of a channel"), said.npos) << said;
  EXPECT_NE(said.find("of a failure"), said.npos) << said;
}

}  // namespace
}  // namespace hearth
