package relayconn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// stateKeeper writes a relay's entry in grasp-relays, each write on the revision of the one before:
// a worker that has lost its claim without knowing it cannot write over its successor.
type stateKeeper struct {
	js       jetstream.JetStream
	kv       jetstream.KeyValue
	key      string
	kept     time.Duration // an entry goes by itself when it was not written for so long
	log      *slog.Logger
	value    proto.RelayState
	wrote    bool // this keeper
	revision uint64
	foreign  uint64 // revision of another worker's entry that kept this one from writing; 0: none did
}

const putTimeout = 5 * time.Second

// stateKept is how long the state of a relay is kept after it was written last, or longer if that
// is when it is tried again: a dead relay is tried once a day, and what is known of relays that are
// gone shrinks within a day.
const stateKept = 24 * time.Hour

// read reads the entry. One that cannot be read is as good as none, and is written over.
func (s *stateKeeper) read(ctx context.Context) error {
	s.value, s.revision = proto.RelayState{}, 0
	entry, err := s.kv.Get(ctx, s.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the state of relay %s: %w", s.key, err)
	}
	s.revision = entry.Revision()
	if err := json.Unmarshal(entry.Value(), &s.value); err != nil {
		s.value = proto.RelayState{}
		s.log.Error("the relay's state cannot be read; beginning afresh", "error", err)
	}
	return nil
}

// put writes the entry. If another write came in between, it writes once more on that one in these
// cases: the entry is gone; this worker wrote it and did not get the answer; this is its first
// write, because a replica of the bucket may have answered read with an older entry; or the entry
// is another worker's and was the same at the last put: the claim is here, so that is a late write
// of a worker that has lost it. Else the error is a conflict, and nothing was written.
func (s *stateKeeper) put(ctx context.Context, v proto.RelayState) error {
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	err := s.write(ctx, v)
	if before := s.revision; bus.IsConflict(err) {
		if err := s.read(ctx); err != nil {
			return err
		}
		if s.wrote && s.revision > 0 && s.value.Worker != v.Worker && s.revision != s.foreign {
			s.foreign, s.revision = s.revision, before
		} else {
			err = s.write(ctx, v)
		}
	}
	if err != nil {
		return fmt.Errorf("write the state of relay %s: %w", s.key, err)
	}
	s.value, s.wrote = v, true
	return nil
}

func (s *stateKeeper) write(ctx context.Context, v proto.RelayState) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if s.revision == 0 {
		s.revision, err = s.kv.Create(ctx, s.key, data, jetstream.KeyTTL(s.kept))
		return err
	}
	// An update as the bucket's own would be, which cannot say when its entry goes.
	ack, err := s.js.Publish(ctx, proto.KVSubject(proto.BucketRelays, s.key), data,
		jetstream.WithExpectLastSequencePerSubject(s.revision), jetstream.WithMsgTTL(s.kept))
	if err == nil {
		s.revision = ack.Sequence
	}
	return err
}
