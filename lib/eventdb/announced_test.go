package eventdb

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// announcing is a reader of a log whose last message announces one that never comes.
type announcing struct {
	jetstream.MessagesContext
	left []jetstream.Msg
}

func (a *announcing) Next(...jetstream.NextOpt) (jetstream.Msg, error) {
	if len(a.left) == 0 {
		return nil, nats.ErrTimeout
	}
	m := a.left[0]
	a.left = a.left[1:]
	return m, nil
}

type logged struct {
	jetstream.Msg
	seq, pending uint64
	subject      string
	data         []byte
}

func (m logged) Data() []byte         { return m.data }
func (m logged) Subject() string      { return m.subject }
func (m logged) Headers() nats.Header { return nil }
func (m logged) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: m.seq}, NumPending: m.pending, Timestamp: time.Now()}, nil
}

// TestWhatIsAnnouncedAndDoesNotCome: the server has told of one more message, which was replaced
// before it was sent. What came before it is applied all the same, and does not wait for the next
// event that somebody publishes.
func TestWhatIsAnnouncedAndDoesNotCome(t *testing.T) {
	t.Parallel()
	db, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	log := &announcing{}
	for n := range uint64(3) {
		ev := made(int(n), 1, 1)
		data, err := ev.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		log.left = append(log.left, logged{seq: n + 1, pending: 3 - n, subject: "grasp.event.1." + ev.PubKey + "." + ev.ID[:32], data: data})
	}
	recs, head, err := nextBatch(t.Context(), db, log, slog.New(slog.DiscardHandler))
	if err != nil || len(recs) != 3 || head != 3 {
		t.Errorf("%d records up to %d, %v", len(recs), head, err)
	}
}
