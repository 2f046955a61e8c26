package message_test

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/services/gateway/message"
)

// BenchmarkLargestCount parses a COUNT of two filters of 2,000 ids each, some 270 KiB.
func BenchmarkLargestCount(b *testing.B) {
	values := make([]string, 2000)
	for i := range values {
		values[i] = fmt.Sprintf(`"%064x"`, i)
	}
	filter := `{"#e":[` + strings.Join(values, ",") + `],"kinds":[1,1111,1621]}`
	data := []byte(`["COUNT","c",` + filter + `,` + filter + `]`)
	limits := message.Limits{Filters: 20, Values: 2003, DefaultLimit: 500, MaxLimit: 5000}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := limits.Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
