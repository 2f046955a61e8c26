package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// stateKeeper writes a relay's entry in grasp-relays, each write on the revision of the one before: a worker that has lost its claim without
// knowing it cannot write over its successor.
type stateKeeper struct {
	kv       jetstream.KeyValue
	key      string
	value    proto.RelayState
	revision uint64
}

const putTimeout = 5 * time.Second

func openState(ctx context.Context, kv jetstream.KeyValue, name string) (*stateKeeper, error) {
	s := &stateKeeper{kv: kv, key: name}
	entry, err := kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of relay %s: %w", name, err)
	}
	if err := json.Unmarshal(entry.Value(), &s.value); err != nil {
		return nil, fmt.Errorf("decode the state of relay %s: %w", name, err)
	}
	s.revision = entry.Revision()
	return s, nil
}

func (s *stateKeeper) put(ctx context.Context, v proto.RelayState) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the state of relay %s: %w", s.key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	var revision uint64
	if s.revision == 0 {
		revision, err = s.kv.Create(ctx, s.key, data)
	} else {
		revision, err = s.kv.Update(ctx, s.key, data, s.revision)
	}
	if err != nil {
		return fmt.Errorf("write the state of relay %s: %w", s.key, err)
	}
	s.value, s.revision = v, revision
	return nil
}
