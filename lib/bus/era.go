package bus

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/proto"
)

// Era tells one making of the buckets of claims and workers from the next. Both are in memory: a
// NATS server that is started anew has lost them, and with them who works on what.
type Era struct{ Claims, Workers time.Time }

// eraTimeout bounds one look.
const eraTimeout = 2 * time.Second

// metaSettled is the metadata of the stream of claims that tells the era that is settled.
const metaSettled = "tendril-settled"

func (e Era) String() string {
	return e.Claims.UTC().Format(time.RFC3339Nano) + " " + e.Workers.UTC().Format(time.RFC3339Nano)
}

// Era looks which era it is. settled: nobody works any more by a claim of an earlier one that was
// not made again.
func (b *Bus) Era(ctx context.Context) (era Era, settled bool, err error) {
	// A question that was lost with the server is not answered: it must not be waited for long.
	ctx, cancel := context.WithTimeout(ctx, eraTimeout)
	defer cancel()
	workers, err := b.JS.Stream(ctx, proto.KVStream(proto.BucketWorkers))
	if err != nil {
		return Era{}, false, fmt.Errorf("look at the bucket of workers: %w", err)
	}
	claims, err := b.JS.Stream(ctx, proto.KVStream(proto.BucketClaims))
	if err != nil {
		return Era{}, false, fmt.Errorf("look at the bucket of claims: %w", err)
	}
	info := claims.CachedInfo()
	era = Era{Claims: info.Created, Workers: workers.CachedInfo().Created}
	return era, info.Config.Metadata[metaSettled] == era.String(), nil
}

// settle tells everybody that an era is settled. It names the era: should the buckets be made anew
// at this moment, it says nothing of the new ones.
func (b *Bus) settle(ctx context.Context, era Era) error {
	stream, err := b.JS.Stream(ctx, proto.KVStream(proto.BucketClaims))
	if err != nil {
		return fmt.Errorf("look at the bucket of claims: %w", err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	cfg.Metadata[metaSettled] = era.String()
	if _, err := b.JS.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("settle the claims: %w", err)
	}
	return nil
}
