package moment_test

import (
	"slices"
	"testing"
	"time"

	"tendril.dev/services/relayconn/moment"
)

func TestMoments(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	var none time.Time
	for _, tc := range []struct{ a, b, earlier time.Time }{
		{none, none, none}, {at(1), none, at(1)}, {none, at(1), at(1)}, {at(1), at(2), at(1)}, {at(2), at(1), at(1)},
	} {
		if got := moment.Earlier(tc.a, tc.b); !got.Equal(tc.earlier) {
			t.Errorf("the earlier of %v and %v is %v", tc.a, tc.b, got)
		}
		if got, want := moment.Later(tc.a, tc.b), latest(tc.a, tc.b); !got.Equal(want) {
			t.Errorf("the later of %v and %v is %v", tc.a, tc.b, got)
		}
	}
	for _, tc := range []struct {
		next    time.Time
		moments []time.Time
	}{
		{none, nil}, {none, []time.Time{none, at(4), at(5)}}, {at(6), []time.Time{at(4), at(7), none, at(6)}},
	} {
		if got := moment.NextAfter(at(5), tc.moments...); !got.Equal(tc.next) {
			t.Errorf("the next of %v after 5 is %v", tc.moments, got)
		}
	}
}

func latest(moments ...time.Time) time.Time {
	return slices.MaxFunc(moments, time.Time.Compare)
}
