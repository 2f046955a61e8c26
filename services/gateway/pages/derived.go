package pages

import (
	"context"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"tendril.dev/lib/eventdb"
)

const (
	// What took less than cheap is made again whenever the index has changed. Else it is kept for
	// share times as long as it took, so that busy times spend little on it.
	cheap, share = 5 * time.Millisecond, 20
	// maxAge bounds how long what has expired is still shown.
	maxAge = time.Minute
)

// derived keeps what pages show of the index, by what it is about. Nothing of it is more than what
// the index has: it can be made again at any time.
type derived[K comparable, V any] struct {
	kept   *lru.Cache[K, made[V]]
	making singleflight.Group
}

// made is what was derived at one moment.
type made[V any] struct {
	value  V
	moment eventdb.Moment
	at     time.Time
	took   time.Duration
}

// everything is the key where there is but one thing.
type everything struct{}

// newDerived keeps so many values, those that were asked for last.
func newDerived[K comparable, V any](most int) *derived[K, V] {
	kept, err := lru.New[K, made[V]](most)
	if err != nil {
		panic(err) // most is a positive constant
	}
	return &derived[K, V]{kept: kept}
}

// serves reports whether what was made may still be shown.
func (m made[V]) serves(moment eventdb.Moment, now time.Time) bool {
	age := now.Sub(m.at)
	return age < maxAge && (m.moment == moment || m.took > cheap && age < share*m.took)
}

// get returns what is about key now. What one client asks for twice at once is made once. No client
// waits for the turn of another at the index: it looks itself whether it was made meanwhile.
func (d *derived[K, V]) get(ctx context.Context, p *Pages, client string, key K,
	derive func(context.Context, *eventdb.View) (V, error)) (value V, err error) {
	if m, kept := d.kept.Get(key); kept && m.serves(p.Index.Moment(), time.Now()) {
		return m.value, nil
	}
	result := d.making.DoChan(fmt.Sprintf("%v %s", key, client), func() (any, error) {
		var m made[V]
		err := p.look(context.WithoutCancel(ctx), client, func(ctx context.Context, v *eventdb.View) (err error) {
			var kept bool
			if m, kept = d.kept.Get(key); kept && m.serves(v.Moment(), time.Now()) {
				return nil
			}
			m = made[V]{moment: v.Moment(), at: time.Now()}
			if m.value, err = derive(ctx, v); err != nil {
				return err
			}
			m.took = time.Since(m.at)
			d.kept.Add(key, m)
			return nil
		})
		return m.value, err
	})
	select {
	case r := <-result:
		value, _ = r.Val.(V)
		return value, r.Err
	case <-ctx.Done():
		return value, ctx.Err()
	}
}
