package eventdb_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/indexcopy"
	"tendril.dev/proto"
)

// BenchmarkCopy makes an index of TENDRIL_BENCH_EVENTS events (1,000,000), batch by batch as from
// the log, and copies it to another process's folder over NATS. Run it with -benchtime 1x. The
// figures: seconds to make the events, and to apply them; bytes on disk; seconds to copy it and to
// open the copy; how long 500 events by kind took that were asked of it meanwhile.
func BenchmarkCopy(b *testing.B) {
	dir, events, made, applied := indexOfMany(b)
	from := open(b, dir)
	defer closeDB(b, from)
	server := bustest.New(b)
	connect := func() *nats.Conn {
		conn, err := nats.Connect(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Close)
		return conn
	}
	ctx, stop := context.WithCancel(b.Context())
	served := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(b.Output(), nil))
	go func() {
		served <- indexcopy.Giver{Conn: connect(), Index: from, As: proto.UserGateway, Name: "one", Rate: 256 << 20, Log: log}.Serve(ctx)
	}()
	asked := connect()
	for {
		if _, err := asked.Request(proto.IndexOffers(proto.UserGateway), []byte("{}"), time.Second); err == nil {
			break
		}
	}
	answers, answering := 0, time.Duration(0)
	asking := make(chan struct{})
	copied := make(chan struct{})
	go func() {
		defer close(asking)
		for ; ; answers++ {
			select {
			case <-copied:
				return
			case <-time.After(20 * time.Millisecond):
			}
			begun := time.Now()
			v := from.View()
			for _, err := range v.QueryRaw(ctx, nostr.Filter{Kinds: []int{1621}, Limit: 500}) {
				if err != nil {
					b.Error(err)
				}
			}
			v.Close()
			answering += time.Since(begun)
		}
	}()
	size, took := int64(0), time.Duration(0)
	for b.Loop() {
		to := open(b, b.TempDir())
		begun := time.Now()
		taken, err := indexcopy.Taker{
			Conn: connect(), JS: longLog{events: events}, Index: to, From: []string{proto.UserGateway}, Name: "another", Log: log,
		}.Take(b.Context())
		took += time.Since(begun)
		if !taken || err != nil || to.Seq() != events {
			b.Fatalf("taken %t, %v, at %d", taken, err, to.Seq())
		}
		size = bytesIn(b, dir)
		closeDB(b, to)
	}
	close(copied)
	<-asking
	stop()
	if err := <-served; err != nil {
		b.Error(err)
	}
	b.ReportMetric(made.Seconds(), "making-s")
	b.ReportMetric(applied.Seconds(), "applying-s")
	b.ReportMetric(float64(size), "disk-B")
	b.ReportMetric(took.Seconds()/float64(b.N), "copy-s")
	b.ReportMetric(float64(answering.Milliseconds())/float64(max(answers, 1)), "ms/query")
}

// indexOfMany returns the folder of an index of TENDRIL_BENCH_EVENTS events, and tells how long it
// took to make the events, and to apply them, if it was not there.
func indexOfMany(b *testing.B) (dir string, events uint64, made, applied time.Duration) {
	b.Helper()
	events = benchEvents
	if given := os.Getenv("TENDRIL_BENCH_EVENTS"); given != "" {
		var err error
		if events, err = strconv.ParseUint(given, 10, 64); err != nil {
			b.Fatal(err)
		}
	}
	root := os.Getenv("TENDRIL_BENCH_DIR")
	if root == "" {
		root = b.TempDir()
	}
	dir = filepath.Join(root, fmt.Sprintf("index-%d", events))
	db := open(b, dir)
	defer closeDB(b, db)
	for db.Seq() < events {
		begun := time.Now()
		recs := benchRecords(db.Seq()+1, benchBatch)
		made += time.Since(begun)
		begun = time.Now()
		if err := db.Apply(recs); err != nil {
			b.Fatal(err)
		}
		applied += time.Since(begun)
	}
	begun := time.Now()
	if err := db.Settle(); err != nil {
		b.Fatal(err)
	}
	return dir, events, made, applied + time.Since(begun)
}

// BenchmarkOpen opens the index that BenchmarkCopy made, and answers a query. Run it alone, with
// -benchtime 1x and TENDRIL_BENCH_DIR, to see how much memory an index takes: resident-B is the
// most that the process had resident.
func BenchmarkOpen(b *testing.B) {
	dir, _, _, applied := indexOfMany(b)
	for b.Loop() {
		db := open(b, dir)
		v := db.View()
		for _, err := range v.QueryRaw(b.Context(), nostr.Filter{Kinds: []int{1621}, Limit: 500}) {
			if err != nil {
				b.Fatal(err)
			}
		}
		v.Close()
		closeDB(b, db)
	}
	if applied > time.Minute {
		b.Log("the index was made in this run: run it again")
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(u.Maxrss)*1024, "resident-B")
}

// bytesIn is what the files of a folder take.
func bytesIn(b *testing.B, dir string) (sum int64) {
	b.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				sum += info.Size()
			}
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return sum
}

// longLog is a log that has so many events, for those who only look at its end.
type longLog struct {
	jetstream.JetStream
	events uint64
}

func (l longLog) Stream(context.Context, string) (jetstream.Stream, error) {
	return longStream{events: l.events}, nil
}

type longStream struct {
	jetstream.Stream
	events uint64
}

func (l longStream) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{State: jetstream.StreamState{Msgs: l.events, LastSeq: l.events, Bytes: l.events * 700}}
}
