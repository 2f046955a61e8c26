package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/world"
)

// gatewayStart measures how long a gateway takes from its start until it is ready, with so many
// events in the log: without an index it reads the log, and then it starts again with its folder.
func gatewayStart(t *testing.T, s *stage) {
	server, volume := world.StartNATS(t), world.Folder(t)
	s.say("%d events are written to the log", *eventCount)
	fillLog(t, server.Direct(), *eventCount)
	data := world.Folder(t)
	for _, what := range []string{"a gateway that reads the log", "the same again, on its own folder"} {
		begun := time.Now()
		r := world.StartReplica(t, "gateway", server.Direct(), volume, map[string]string{"NGIT_RELAY_DATA_PATH": data, "NGIT_LOG_LEVEL": "info"})
		r.AwaitReady()
		took := time.Since(begun)
		u := used(t, r.PID())
		s.add(fmt.Sprintf("%s, %d events in the log, from its start to ready", what, *eventCount),
			fmt.Sprintf("%.1f s; %.1f s of CPU; %s resident at most; %s on the disk", took.Seconds(), u.cpu.Seconds(), mib(u.peak), mib(folderBytes(t, data))),
			"", s.limits.String())
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// fillLog writes so many events to the log as ingest does. Nobody who reads them looks at their
// signatures, which are none.
func fillLog(t *testing.T, url string, n int) {
	t.Helper()
	b, err := bus.Open(world.Context(t), bus.Options{Name: "fill", URL: url, Sizing: proto.DefaultSizing(), Provisions: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for first := 0; first < n; first += bus.MaxBatch {
		var msgs []*nats.Msg
		for i := first; i < min(n, first+bus.MaxBatch); i++ {
			ev := someEvent(i)
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
		}
		if _, err := b.PublishBatch(t.Context(), msgs, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// someEvent is the nth event of a log: 20,000 authors, 1,000 repositories, 600 to 900 bytes.
func someEvent(n int) *nostr.Event {
	hash := func(what string, n int) string {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(what), uint64(n)))
		return hex.EncodeToString(sum[:])
	}
	repository := n * 7 % 1000
	owner := hash("author", repository)
	ev := &nostr.Event{
		ID: hash("event", n), PubKey: hash("author", n*13%20_000), CreatedAt: nostr.Timestamp(1_700_000_000 + n/3), Kind: []int{1621, 1617, 1111, 1111, 7}[n%5],
		Sig: hash("sig", n) + hash("gis", n), Content: strings.Repeat("as said before, ", 4+n%20),
		Tags: nostr.Tags{{"a", fmt.Sprintf("30617:%s:project-%d", owner, repository)}, {"p", owner}, {"t", fmt.Sprintf("topic-%d", n%50)}},
	}
	if ev.Kind == 1111 || ev.Kind == 7 {
		root := hash("event", n/2)
		ev.Tags = append(ev.Tags, nostr.Tag{"e", root}, nostr.Tag{"E", root}, nostr.Tag{"k", "1621"})
	}
	return ev
}

// folderBytes is what the files of a folder take.
func folderBytes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if info, gone := e.Info(); gone == nil { // files are merged meanwhile
				sum += info.Size()
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return sum
}
