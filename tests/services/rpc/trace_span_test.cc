#include "services/rpc/trace_span.h"

#include <gtest/gtest.h>

namespace hearth {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c", kSpan[] = "b7ad6b7169203331";

std::string Header(const std::string& version, const std::string& flags) {
  return version + "-" + kTrace + "-" + kSpan + "-" + flags;
}

TEST(TraceSpan, ContinuesTheTraceOfTheCaller) {
  const TraceSpan span = NewSpan(Header("00", "01"));
  EXPECT_EQ(span.trace_id, kTrace);
  EXPECT_EQ(span.parent_id, kSpan);
  EXPECT_TRUE(span.is_sampled);
  EXPECT_EQ(span.span_id.size(), 16u);
  EXPECT_NE(span.span_id, kSpan);
  const TraceSpan next = NewSpan(span.Traceparent());
  EXPECT_EQ(next.trace_id, kTrace);
  EXPECT_EQ(next.parent_id, span.span_id);
  EXPECT_TRUE(next.is_sampled);
  EXPECT_NE(NewSpan(Header("00", "01")).span_id, span.span_id);
}

TEST(TraceSpan, OnlyTheLastFlagMeansSampled) {
  EXPECT_FALSE(NewSpan(Header("00", "00")).is_sampled);
  EXPECT_FALSE(NewSpan(Header("00", "fe")).is_sampled);
  EXPECT_TRUE(NewSpan(Header("00", "ff")).is_sampled);
  EXPECT_TRUE(NewSpan(Header("00", "03")).is_sampled);
}

TEST(TraceSpan, HigherVersionMayAddFields) {
  EXPECT_EQ(NewSpan(Header("01", "01")).trace_id, kTrace);
  EXPECT_EQ(NewSpan(Header("cc", "01") + "-more").trace_id, kTrace);
}

TEST(TraceSpan, InvalidHeaderBeginsATrace) {
  const std::string zeros(32, '0');
  for (const std::string& sent :
       {std::string(), std::string("00"), Header("ff", "01"), Header("0G", "01"),
        Header("00", "0A"), Header("00", "01") + "-more", Header("01", "01") + "more",
        Header("00", "01") + "\n", "00_" + Header("00", "01").substr(3),
        "00-" + zeros + "-" + kSpan + "-01",
        "00-" + std::string(kTrace) + "-" + zeros.substr(0, 16) + "-01",
        "00-0AF7651916CD43DD8448EB211C80319C-" + std::string(kSpan) + "-01", std::string(55, '\0'),
        std::string(100000, 'a')}) {
    const TraceSpan span = NewSpan(sent);
    EXPECT_EQ(span.trace_id.size(), 32u) << sent;
    EXPECT_NE(span.trace_id, kTrace) << sent;
    EXPECT_EQ(span.parent_id, "") << sent;
    EXPECT_FALSE(span.is_sampled) << sent;
    EXPECT_EQ(NewSpan(span.Traceparent()).parent_id, span.span_id) << "is a valid header";
  }
}

TEST(TraceSpan, NoSpanSendsNothing) { EXPECT_EQ(TraceSpan().Traceparent(), ""); }

}  // namespace
}  // namespace hearth
