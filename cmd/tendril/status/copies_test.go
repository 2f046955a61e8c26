package status

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/indexcopy"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// asks asks a giver of copies something, and reads the answer into a value; nil: it does not
// matter.
func asks(t *testing.T, b *bus.Bus, subject string, question, into any) {
	t.Helper()
	data, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	for ctx := within(t); ; {
		msg, err := b.Conn.RequestWithContext(ctx, subject, data)
		switch {
		case ctx.Err() != nil:
			t.Fatalf("%s: %v", subject, err)
		case err != nil: // nobody answers yet
			time.Sleep(time.Millisecond)
			continue
		case msg.Header.Get(micro.ErrorCodeHeader) != "":
			t.Fatalf("%s: %v", subject, msg.Header)
		case into != nil && json.Unmarshal(msg.Data, into) != nil:
			t.Fatalf("%s: %q", subject, msg.Data)
		}
		return
	}
}

// TestCopiesAreShown: while a process gives a copy of its index, an operator's report says to whom
// and how far it is.
func TestCopiesAreShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := logins.Init(dir, logins.Default()...); err != nil {
		t.Fatal(err)
	}
	srv := bustest.WithUsers(t, filepath.Join(dir, logins.UsersFile))
	b, err := bus.Open(within(t), bus.Options{
		URL: srv.URL, Provisions: true, LoginFile: logins.LoginFile(dir, proto.UserIngest), Name: "tendril ingest one", Sizing: proto.DefaultSizing(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	index, err := eventdb.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close()
	ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), Kind: 1, Content: "x", Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	if err := index.Apply([]eventdb.Record{{Seq: 1, Event: ev}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- indexcopy.Giver{Conn: b.Conn, Index: index, As: proto.UserIngest, Name: "ingest one", Rate: 1 << 30, Log: slog.New(slog.DiscardHandler)}.Serve(ctx)
	}()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	operator, err := bus.Look(bus.Options{URL: srv.URL, LoginFile: logins.LoginFile(dir, proto.UserOperator)}, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	reader, err := Open(within(t), operator)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()

	var offer proto.IndexOffer
	asks(t, b, proto.IndexOffers(proto.UserIngest), proto.IndexAsk{}, &offer)
	eventually(t, reader, "nothing is given", func(r Report) bool { return len(r.Copies) == 0 })
	subject := func(verb proto.IndexVerb) string {
		s, err := proto.IndexSubject(proto.UserIngest, offer.Replica, verb)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	var copied proto.IndexCopy
	asks(t, b, subject(proto.IndexBegin), proto.IndexAsk{For: "ingest two"}, &copied)
	var bytes int64
	for _, f := range copied.Files {
		bytes += f.Bytes
	}
	is := func(given int64, percent int) func(Report) bool {
		return func(r Report) bool {
			if len(r.Copies) != 1 {
				return false
			}
			c := r.Copies[0]
			c.Since = time.Time{}
			return c == Copy{From: "ingest one", To: "ingest two", Phase: "copying", Seq: 1, Bytes: bytes, Given: given, Percent: percent}
		}
	}
	eventually(t, reader, "it has begun", is(0, 0))
	for n, f := range copied.Files {
		if f.Bytes == 0 {
			continue // it has no chunk
		}
		asks(t, b, subject(proto.IndexReads), proto.IndexRead{Copy: copied.Copy, File: n}, nil)
	}
	eventually(t, reader, "all is given", is(bytes, 100))
	asks(t, b, subject(proto.IndexEnd), proto.IndexRead{Copy: copied.Copy}, nil)
	eventually(t, reader, "it is over", func(r Report) bool { return len(r.Copies) == 0 })
	if refused := srv.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

func TestCopyOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		loan proto.IndexLoan
		want Copy
	}{
		"a checkpoint is made": {proto.IndexLoan{From: "a", For: "b", Since: noon}, Copy{From: "a", To: "b", Phase: "checkpoint", Since: noon}},
		"half":                 {proto.IndexLoan{Seq: 7, Bytes: 201, Given: 100}, Copy{Phase: "copying", Seq: 7, Bytes: 201, Given: 100, Percent: 49}},
		"some of it twice":     {proto.IndexLoan{Seq: 7, Bytes: 100, Given: 130}, Copy{Phase: "copying", Seq: 7, Bytes: 100, Given: 100, Percent: 100}},
		"nothing to give":      {proto.IndexLoan{Seq: 7}, Copy{Phase: "copying", Seq: 7}},
	} {
		if got := copyOf(c.loan); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	for _, data := range []string{"", "{", `{"endpoints":[null]}`, `{"endpoints":[{"name":"offer","data":null},{"name":"offer"},{"name":"offer","data":7},{"name":"read","data":{"for":"b"}}]}`} {
		if got := copiesIn([]byte(data)); len(got) != 0 {
			t.Errorf("%s: %+v", data, got)
		}
	}
}
