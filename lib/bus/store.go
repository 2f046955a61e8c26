package bus

import (
	"context"
	"fmt"
)

// StoreLimit is how many bytes JetStream may store on disk for this process's account; 0: no limit
// is known.
func (b *Bus) StoreLimit(ctx context.Context) (int64, error) {
	if b.server != nil {
		config := b.server.JetStreamConfig()
		if config == nil {
			return 0, nil
		}
		return config.MaxStore, nil
	}
	info, err := b.JS.AccountInfo(ctx)
	if err != nil {
		return 0, fmt.Errorf("read JetStream's limits: %w", err)
	}
	return max(0, info.Limits.MaxStore), nil
}
