package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// willing takes all that is offered and accepts it at once.
type willing struct{ offered atomic.Int64 }

func (w *willing) Offer(_ context.Context, c candidates.Candidate) error {
	w.offered.Add(1)
	c.Done(proto.Verdict{ID: c.Event.ID, Outcome: proto.Accepted}, nil)
	return nil
}

// endless is a relay that never ends its answer, and an observer that does not look.
type endless struct{}

func (endless) Req(context.Context, string, []nostr.Filter) error      { return nil }
func (endless) Unsubscribe(context.Context, string) error              { return nil }
func (endless) Status(session.Status)                                  {}
func (endless) Judged(*nostr.Event, proto.Source, bool, proto.Verdict) {}

// states encodes signed events as a relay sends them, of about 800 bytes.
func states(b *testing.B, n int) [][]byte {
	b.Helper()
	all := make([][]byte, n)
	var making sync.WaitGroup
	for part := range 4 {
		making.Go(func() {
			for i := part; i < n; i += 4 {
				ev := &nostr.Event{Kind: 30618, CreatedAt: nostr.Timestamp(1_700_000_000 - i), Tags: nostr.Tags{
					{"d", fmt.Sprint("repository-", i)}, {"refs/heads/main", strings.Repeat("c", 40)}, {"refs/heads/next", strings.Repeat("d", 40)}, {"HEAD", "ref: refs/heads/main"},
				}, Content: strings.Repeat("about it, ", 20)}
				if err := ev.Sign(key); err != nil {
					panic(err)
				}
				data, err := ev.MarshalJSON()
				if err != nil {
					panic(err)
				}
				all[i] = fmt.Appendf(nil, `["EVENT","h2",%s]`, data)
			}
		})
	}
	making.Wait()
	return all
}

// BenchmarkIntake takes events from the messages of relays to ingest, which accepts them at once:
// parsed, matched, looked up, verified and offered. An operation is an event that all relays bring.
func BenchmarkIntake(b *testing.B) {
	for _, relays := range []int{1, 20} {
		b.Run(fmt.Sprint("relays=", relays), func(b *testing.B) {
			messages := states(b, b.N)
			ingest := &willing{}
			in := intake.New(intake.Options{Offerer: ingest})
			ctx, end := context.WithCancel(b.Context())
			var running, reading sync.WaitGroup
			running.Go(func() { in.Run(ctx) })
			began := cpu(b)
			b.ReportAllocs()
			b.ResetTimer()
			for r := range relays {
				url := fmt.Sprintf("wss://r%d.example.com", r)
				s := session.New(session.Options{
					Relay: url, Rules: session.Rules{PageLimit: 1 << 30, AtOnce: 4, MaxFilters: 70, Settle: time.Hour, Silence: time.Hour},
					Asker: endless{}, Observer: endless{}, Log: slog.New(slog.DiscardHandler), Intake: in.Open(url),
				})
				heard := make(chan wire.Message)
				running.Go(func() {
					if err := s.Run(ctx, session.Start{}, heard, nil, nil); err != nil {
						b.Error(err)
					}
				})
				reading.Go(func() {
					heard <- wire.Message{Kind: wire.EOSE, Sub: "l1"} // only then the past is asked for
					for _, data := range messages {
						m, err := wire.Parse(data)
						if err != nil {
							b.Error(err)
							return
						}
						heard <- m
					}
				})
			}
			reading.Wait()
			for ingest.offered.Load() < int64(b.N) {
				time.Sleep(100 * time.Microsecond)
			}
			b.StopTimer()
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/1e3, "cpu-µs/op")
			b.ReportMetric(float64(ingest.offered.Load())/float64(b.N), "offers/op")
			end()
			running.Wait()
		})
	}
}

// cpu is what the process has used of all cores: unlike the clock it does not count what other
// processes use.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
