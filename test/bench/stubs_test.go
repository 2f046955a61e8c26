package bench

import "testing"

func requests(t *testing.T, s *stage)    {}
func dailySync(t *testing.T, s *stage)   {}
func liveLatency(t *testing.T, s *stage) {}
