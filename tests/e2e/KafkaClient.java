import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Java's own clients, for test_kafka_clients.py: "send" and "read" as the other clients do, and "admin". */
class KafkaClient {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[1]);
        String topic = arguments[2];
        switch (arguments[0]) {
            case "send" -> send(config, topic, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
            case "read" -> read(config, topic);
            case "admin" -> admin(config, topic);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    static void send(Properties config, String topic, int first, int end) throws Exception {
        StringSerializer text = new StringSerializer();
        try (var producer = new KafkaProducer<>(config, text, text)) {
            for (int number = first; number < end; number += 1) {
                String value = String.valueOf(number);
                producer.send(new ProducerRecord<>(topic, number % 4, null, value)).get();
                System.out.println(number);
            }
        }
    }

    static void read(Properties config, String topic) {
        config.put("group.id", topic);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("session.timeout.ms", "6000");
        config.put("heartbeat.interval.ms", "500");
        StringDeserializer text = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(config, text, text)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                consumer.poll(Duration.ofMillis(200)).forEach(each -> System.out.println(each.value()));
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | RetriableException error) {
                    System.err.println(error);
                }
            }
        }
    }

    /** What a tool does with a topic and a group, and what it is told: one line each. */
    static void admin(Properties config, String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 3);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (var admin = Admin.create(config)) {
            NewTopic wanted = new NewTopic(topic, Optional.empty(), Optional.empty());
            wanted.configs(Map.of("retention.ms", "3600000"));
            System.out.println("made " + admin.createTopics(Set.of(wanted)).numPartitions(topic).get());
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            System.out.println("listed " + admin.listTopics().names().get().contains(topic));
            var described = admin.describeTopics(Set.of(topic)).allTopicNames().get().get(topic);
            System.out.println("partitions " + described.partitions().size());
            var settings = admin.describeConfigs(Set.of(resource)).all().get().get(resource);
            System.out.println("retention " + settings.get("retention.ms").value());
            System.out.println("brokers " + admin.describeCluster().nodes().get().size());
            StringSerializer text = new StringSerializer();
            try (var producer = new KafkaProducer<>(config, text, text)) {
                producer.send(new ProducerRecord<>(topic, 3, "key", "value")).get();
            }
            var ends = admin.listOffsets(Map.of(place, OffsetSpec.latest()));
            System.out.println("end " + ends.partitionResult(place).get().offset());

            var offset = Map.of(place, new OffsetAndMetadata(1, "metadata"));
            admin.alterConsumerGroupOffsets(topic, offset).all().get();
            var groups = admin.listGroups().all().get().stream().filter(each -> each.groupId().equals(topic));
            System.out.println("groups " + groups.count());
            var group = admin.describeConsumerGroups(Set.of(topic)).all().get().get(topic);
            System.out.println("group " + group.groupState() + ", members " + group.members().size());
            var committed = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(place);
            System.out.println("committed " + committed.offset() + " " + committed.metadata());
            admin.deleteConsumerGroups(Set.of(topic)).all().get();

            admin.deleteTopics(Set.of(topic)).all().get();
            System.out.println("listed " + admin.listTopics().names().get().contains(topic));
        }
    }
}
