package acker;

import java.util.Arrays;
import java.util.Map;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * Trees a second through Storm's LocalCluster: a spout that emits numbers, and one or two bolts that hand them on.
 *
 * One worker, one task each, hardly any sampling of statistics, as in Storm's own performance topologies. An acked tree
 * counts when the spout gets the ack, an untracked one when the last bolt has the tuple. Each shape is run with several
 * values of the two settings below, and all runs are printed: the best values depend on the machine. Usage: Topologies
 * SECONDS
 */
public final class Topologies {
    private static final int ROUNDS = 3;
    /** Tuples that are handed on together (1 is Storm's default), and trees pending at most (0: no limit). */
    private static final int[][] ACKED = {{1, 1000}, {1, 0}, {100, 1000}, {100, 0}};
    private static final int[][] UNTRACKED = {{1, 0}, {1000, 0}};

    static volatile long done;

    public static void main(String[] arguments) throws Exception {
        double seconds = Double.parseDouble(arguments[0]);
        for (int bolts = 1; bolts <= 2; bolts++) {
            for (boolean acked : new boolean[] {true, false}) {
                for (int[] setting : acked ? ACKED : UNTRACKED) {
                    double rate = measure(bolts, acked, setting[0], setting[1], seconds);
                    System.out.printf(
                        "{\"bolts\": %d, \"acked\": %b, \"batch\": %d, \"max_pending\": %d, \"trees_per_s\": %.0f}%n",
                        bolts, acked, setting[0], setting[1], rate);
                    System.out.flush();
                }
            }
        }
        System.exit(0);
    }

    private static double measure(int bolts, boolean acked, int batch, int maxPending, double seconds) throws Exception {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("spout", new Numbers(acked));
        String before = "spout";
        for (int bolt = 1; bolt <= bolts; bolt++) {
            String name = "bolt" + bolt;
            builder.setBolt(name, new HandOn(bolt == bolts, acked)).localOrShuffleGrouping(before);
            before = name;
        }
        Config config = new Config();
        config.setNumWorkers(1);
        config.setNumAckers(acked ? 1 : 0);
        config.setStatsSampleRate(0.0001);
        config.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, batch);
        if (maxPending > 0) {
            config.setMaxSpoutPending(maxPending);
        }
        try (LocalCluster cluster = new LocalCluster();
             LocalCluster.LocalTopology topology = cluster.submitTopology("numbers", config, builder.createTopology())) {
            done = 0;
            while (done == 0) {
                Thread.sleep(100);
            }
            rate(2 * seconds);
            double[] rates = new double[ROUNDS];
            for (int round = 0; round < ROUNDS; round++) {
                rates[round] = rate(seconds);
            }
            Arrays.sort(rates);
            return rates[ROUNDS / 2];
        }
    }

    private static double rate(double seconds) throws InterruptedException {
        long from = done;
        long begun = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        return (done - from) / ((System.nanoTime() - begun) / 1e9);
    }

    /** Emits numbers, either with ids, so that they are tracked, or without ids. */
    public static final class Numbers extends BaseRichSpout {
        private final boolean acked;
        private SpoutOutputCollector collector;
        private long number;
        private long told;

        Numbers(boolean acked) {
            this.acked = acked;
        }

        @Override public void open(Map<String, Object> config, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override public void nextTuple() {
            number++;
            if (acked) {
                collector.emit(new Values(number), number);
            } else {
                collector.emit(new Values(number));
            }
        }

        @Override public void ack(Object id) {
            done = ++told;
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("number"));
        }
    }

    /** Emits the number of each tuple again, anchored to the tuple if it is tracked, and acks it. The last bolt emits none. */
    public static final class HandOn extends BaseRichBolt {
        private final boolean last;
        private final boolean acked;
        private OutputCollector collector;
        private long seen;

        HandOn(boolean last, boolean acked) {
            this.last = last;
            this.acked = acked;
        }

        @Override public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
        }

        @Override public void execute(Tuple tuple) {
            if (!last) {
                collector.emit(tuple, new Values(tuple.getLong(0)));
            } else if (!acked) {
                done = ++seen;
            }
            collector.ack(tuple);
        }

        @Override public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("number"));
        }
    }
}
